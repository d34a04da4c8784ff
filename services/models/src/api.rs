//! How the world reaches models. All the gRPC.

mod decode;
mod limits;
mod usage;

use std::sync::Arc;

use futures::TryStreamExt as _;
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
    catalogue::{Catalogue, Model},
    error::{Error, Result},
    facts::{self, Correlation},
    generate::generate,
    provider::Providers,
    usage::prompt_tokens,
};

pub fn routes(
    chassis: &chassis::Args,
    catalogue: Arc<Catalogue>,
    providers: Providers,
    admission: Admission,
    stop: CancellationToken,
) -> Routes {
    let limits = Limits { admission: admission.clone() };
    let usages = Usages { db: admission.db().clone() };
    let api = Api { catalogue, providers, admission, stop };
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
    catalogue: Arc<Catalogue>,
    providers: Providers,
    admission: Admission,
    stop: CancellationToken,
}

#[tonic::async_trait]
impl ModelService for Api {
    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<BoxStream<pb::GenerateResponse>>, Status> {
        let caller = chassis::caller(&request)?;
        let generation = decode::generation(request.into_inner(), caller)?;
        if let Some(name) = &generation.task.model {
            self.find(name)?;
        }
        let (catalogue, providers) = (self.catalogue.clone(), self.providers.clone());
        let admission = self.admission.clone();
        let answer = generate(catalogue, providers, admission, generation, self.stop.clone());
        let answer = answer.map_ok(|item| pb::GenerateResponse { item: Some(item) });
        Ok(Response::new(Box::pin(answer.map_err(Into::into))))
    }

    async fn count_tokens(
        &self,
        request: Request<pb::CountTokensRequest>,
    ) -> Result<Response<pb::CountTokensResponse>, Status> {
        let request = request.into_inner();
        let model = self.find(&request.model)?;
        let prompt = decode::prompt(request.prompt)?;
        Ok(Response::new(pb::CountTokensResponse {
            tokens: prompt_tokens(&prompt),
            usable_tokens: model.context_tokens - model.output_tokens,
            basis: "estimated".to_owned(),
        }))
    }

    async fn list_models(
        &self,
        request: Request<pb::ListModelsRequest>,
    ) -> Result<Response<pb::ListModelsResponse>, Status> {
        let request = request.into_inner();
        let size = decode::page_size(request.page_size)?;
        let models = self.catalogue.models();
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
            models: page.iter().map(Into::into).collect(),
            next_page_token: last.map(Model::name).unwrap_or_default(),
        }))
    }

    async fn explain_route(
        &self,
        request: Request<pb::ExplainRouteRequest>,
    ) -> Result<Response<pb::ExplainRouteResponse>, Status> {
        let request = request.into_inner();
        let task = decode::task(request.target, request.tokens)?;
        if let Some(name) = &task.model {
            self.find(name)?;
        }
        let payloads = facts::routing(&task, &task.candidates(&self.catalogue));
        let facts = payloads.into_iter().map(|payload| Correlation::default().fact("", payload));
        Ok(Response::new(pb::ExplainRouteResponse { facts: facts.collect() }))
    }
}

impl Api {
    fn find(&self, name: &str) -> Result<&Model> {
        self.catalogue.find(name).ok_or_else(|| Error::ModelNotFound(name.to_owned()))
    }
}

impl From<&Model> for pb::Model {
    fn from(model: &Model) -> pb::Model {
        pb::Model {
            model: model.name(),
            context_tokens: model.context_tokens,
            output_tokens: model.output_tokens,
            capabilities: model.capabilities.iter().map(|one| one.as_str().to_owned()).collect(),
            tier: model.tier.as_str().to_owned(),
            regions: Vec::new(),
            price: Some(pb::model::Price {
                currency: model.price.currency.clone(),
                input_micros: model.price.input_micros,
                output_micros: model.price.output_micros,
                cache_read_micros: model.price.cache_read_micros,
                cache_write_micros: model.price.cache_write_micros,
            }),
            breaker: "closed".to_owned(),
        }
    }
}
