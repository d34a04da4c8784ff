//! How the world reaches models. All the gRPC.

mod decode;
mod limits;
mod usage;

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use proto::models::v1::{
    self as pb,
    limit_service_server::LimitServiceServer,
    model_service_server::{ModelService, ModelServiceServer},
    usage_service_server::UsageServiceServer,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, codec::CompressionEncoding, codegen::BoxStream, service::Routes,
};

use self::{limits::Limits, usage::Usages};
use crate::{
    admission::Admission,
    catalogue::{Model, Offer, live::Live},
    error::{Error, Result},
    facts::{self, Correlation},
    generate::generate,
    health::{Health, Vitals},
    joined::joined,
    soon::Soon,
    tokens::Size,
};

pub fn routes(
    chassis: &chassis::Args,
    catalogue: Arc<Live>,
    health: Arc<Health>,
    admission: Admission,
    stop: CancellationToken,
) -> Routes {
    let limits = Limits { admission: admission.clone() };
    let usages = Usages { db: admission.db().clone() };
    let api = Api { catalogue, health, admission, soon: Arc::default(), stop };
    // The contract promises room for a prompt, whatever else the limit is. Answers are
    // streams of a few bytes at a time, which compressing would make larger.
    let models = ModelServiceServer::new(api)
        .max_decoding_message_size(chassis.server.max_message_bytes.max(decode::MAX_REQUEST_BYTES))
        .max_encoding_message_size(chassis.server.max_message_bytes)
        .accept_compressed(CompressionEncoding::Gzip);
    Routes::new(models)
        .add_service(chassis::service!(LimitServiceServer::new(limits), chassis))
        .add_service(chassis::service!(UsageServiceServer::new(usages), chassis))
}

struct Api {
    catalogue: Arc<Live>,
    health: Arc<Health>,
    admission: Admission,
    soon: Arc<Soon>,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl ModelService for Api {
    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<BoxStream<pb::GenerateResponse>>, Status> {
        let caller = chassis::caller(&request)?;
        let generation = decode::generation(caller, request.into_inner())?;
        let served = self.catalogue.now();
        if let Some(name) = &generation.task.model {
            find(served.catalogue.of(generation.account.tenant.as_str()), name)?;
        }
        let (health, admission) = (self.health.clone(), self.admission.clone());
        let answer = generate(served, health, admission, generation, self.stop.clone());
        let answer = joined(answer, self.soon.clone());
        let answer = answer.map_ok(|item| pb::GenerateResponse { item: Some(item) });
        let mut answer = Box::pin(answer.map_err(Status::from));
        // Together with the first facts, because everything that is sent wakes somebody up.
        let first = answer.next().await;
        Ok(Response::new(Box::pin(stream::iter(first).chain(answer))))
    }

    async fn count_tokens(
        &self,
        request: Request<pb::CountTokensRequest>,
    ) -> Result<Response<pb::CountTokensResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let served = self.catalogue.now();
        let model = find(served.catalogue.of(caller.tenant.as_str()), &request.model)?;
        let prompt = decode::prompt(request.prompt)?;
        Ok(Response::new(pb::CountTokensResponse {
            tokens: Size::of(&prompt).tokens(model.tokenizer),
            usable_tokens: model.context_tokens - model.output_tokens,
            basis: "estimated".to_owned(),
        }))
    }

    async fn list_models(
        &self,
        request: Request<pb::ListModelsRequest>,
    ) -> Result<Response<pb::ListModelsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let size = decode::page_size(request.page_size)?;
        let served = self.catalogue.now();
        let Offer { models, policy } = served.catalogue.of(caller.tenant.as_str());
        let models: Vec<_> = models.iter().filter(|model| policy.permits(model)).collect();
        let start = match request.page_token.as_str() {
            "" => 0,
            last => {
                let last = models.iter().position(|model| model.name() == last);
                last.ok_or(Error::InvalidCursor)? + 1
            }
        };
        let (page, rest) = models[start..].split_at(size.min(models.len() - start));
        let last = page.last().filter(|_| !rest.is_empty());
        Ok(Response::new(pb::ListModelsResponse {
            models: page.iter().map(|model| shown(model, self.health.of(model))).collect(),
            next_page_token: last.map(|model| model.name()).unwrap_or_default(),
        }))
    }

    async fn explain_route(
        &self,
        request: Request<pb::ExplainRouteRequest>,
    ) -> Result<Response<pb::ExplainRouteResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let task = decode::task(request.target, decode::counted(request.tokens)?)?;
        let served = self.catalogue.now();
        let offer = served.catalogue.of(caller.tenant.as_str());
        if let Some(name) = &task.model {
            find(offer, name)?;
        }
        let found = task.candidates(offer, |model| self.health.of(model));
        let payloads = facts::routing(&task, &found);
        let facts = payloads.into_iter().map(|payload| Correlation::default().fact("", payload));
        Ok(Response::new(pb::ExplainRouteResponse { facts: facts.collect() }))
    }
}

fn find<'a>(offer: &'a Offer, name: &str) -> Result<&'a Model> {
    offer.find(name).ok_or_else(|| Error::ModelNotFound(name.to_owned()))
}

fn shown(model: &Model, vitals: Vitals) -> pb::Model {
    pb::Model {
        model: model.name(),
        context_tokens: model.context_tokens,
        output_tokens: model.output_tokens,
        capabilities: model.capabilities.iter().map(|one| one.as_str().to_owned()).collect(),
        tier: model.tier.as_str().to_owned(),
        regions: model.regions.iter().cloned().collect(),
        price: Some(pb::model::Price {
            currency: model.price.currency.clone(),
            input_micros: model.price.input_micros,
            output_micros: model.price.output_micros,
            cache_read_micros: model.price.cache_read_micros,
            cache_write_micros: model.price.cache_write_micros,
        }),
        breaker: vitals.breaker.as_str().to_owned(),
    }
}
