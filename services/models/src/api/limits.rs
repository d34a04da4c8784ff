//! Limits and budgets, set and shown.

use chassis::{Caller, caller};
use proto::models::v1::{self as pb, limit_service_server::LimitService};
use tonic::{Request, Response, Status};

use super::decode;
use crate::{
    admission::Admission,
    counters::Counters,
    error::{Error, Result},
    limit::{BudgetId, Governance, Limit, Window, counter},
    moment::Moment,
    store::{budgets, requests, rules},
    time::to_proto,
};

/// What every price of the catalogue is in.
const CURRENCY: &str = "USD";

pub struct Limits {
    pub admission: Admission,
}

#[tonic::async_trait]
impl LimitService for Limits {
    async fn put_limit(
        &self,
        request: Request<pb::PutLimitRequest>,
    ) -> Result<Response<pb::PutLimitResponse>, Status> {
        let Caller { tenant, subject, .. } = caller(&request)?;
        let limit = decode::limit(request.into_inner().limit, &tenant)?;
        if !rules::set(self.admission.db(), &tenant, &subject, &limit).await? {
            let problem =
                format!("there are {} limits, which is as many as there may be", rules::MAX_LIMITS);
            return Err(Error::Invalid { field: "limit".to_owned(), problem }.into());
        }
        self.admission.rules_changed(&tenant).await?;
        let now = Moment::of(jiff::Timestamp::now());
        let limit = match limit.terms.value {
            0 => shown(&limit, 0, &now),
            _ => {
                let used = used(&self.counters(&tenant, &now).await?, &limit, &now);
                shown(&limit, used, &now)
            }
        };
        Ok(Response::new(pb::PutLimitResponse { limit: Some(limit) }))
    }

    async fn list_limits(
        &self,
        request: Request<pb::ListLimitsRequest>,
    ) -> Result<Response<pb::ListLimitsResponse>, Status> {
        let tenant = caller(&request)?.tenant;
        let request = request.into_inner();
        let size = decode::page_size(request.page_size)?;
        let after: Option<(String, String, String)> = decode::page_token(&request.page_token)?;
        let db = self.admission.db();
        let mut limits = rules::list(db, &tenant, after.as_ref(), size as i64 + 1).await?;
        let more = limits.len() > size;
        limits.truncate(size);
        let next_page_token = match limits.last().filter(|_| more) {
            Some(Limit { name, scope, key, .. }) => {
                decode::to_page_token(&(name.as_str(), scope.as_str(), key))
            }
            None => String::new(),
        };
        let now = Moment::of(jiff::Timestamp::now());
        let counters = self.counters(&tenant, &now).await?;
        let limits = limits.iter().map(|limit| shown(limit, used(&counters, limit, &now), &now));
        Ok(Response::new(pb::ListLimitsResponse { limits: limits.collect(), next_page_token }))
    }

    async fn put_budget(
        &self,
        request: Request<pb::PutBudgetRequest>,
    ) -> Result<Response<pb::PutBudgetResponse>, Status> {
        let Caller { tenant, subject, .. } = caller(&request)?;
        let request = request.into_inner();
        let amount = decode::amount(request.amount_micros)?;
        let db = self.admission.db();
        let id = match request.budget_id.as_str() {
            "" => {
                let name = decode::required("name", request.name)?;
                let request_id = decode::required("request_id", request.request_id)?;
                let made =
                    budgets::create(db, &tenant, &subject, &request_id, &name, amount).await?;
                let Some((id, made)) = made else {
                    let problem =
                        format!("there is a budget {name}, change that one by its budget_id");
                    return Err(Error::Invalid { field: "name".to_owned(), problem }.into());
                };
                let budget = self.budget(&tenant, id).await?;
                if !made && (budget.name != name || budget.amount_micros != amount) {
                    return Err(Error::RequestIdReused(request_id).into());
                }
                id
            }
            id => {
                let id = budget_id(id)?;
                if !budgets::set_amount(db, &tenant, &subject, id, amount).await? {
                    return Err(Error::BudgetNotFound(id.to_string()).into());
                }
                id
            }
        };
        self.admission.rules_changed(&tenant).await?;
        let budget = self.budget(&tenant, id).await?;
        Ok(Response::new(pb::PutBudgetResponse { budget: Some(budget.into()) }))
    }

    async fn get_budget(
        &self,
        request: Request<pb::GetBudgetRequest>,
    ) -> Result<Response<pb::GetBudgetResponse>, Status> {
        let tenant = caller(&request)?.tenant;
        let budget = self.budget(&tenant, budget_id(&request.into_inner().budget_id)?).await?;
        Ok(Response::new(pb::GetBudgetResponse { budget: Some(budget.into()) }))
    }
}

impl Limits {
    async fn budget(&self, tenant: &chassis::Tenant, id: BudgetId) -> Result<budgets::Budget> {
        let budget = budgets::get(self.admission.db(), tenant, id).await?;
        budget.ok_or_else(|| Error::BudgetNotFound(id.to_string()))
    }

    /// What is used, by the ledger.
    async fn counters(&self, tenant: &chassis::Tenant, now: &Moment) -> Result<Counters> {
        let (rules, past) = requests::past(self.admission.db(), tenant, now).await?;
        Ok(Counters::of(&Governance::from(&rules), &past, now))
    }
}

/// An id that is none of ours names no budget either.
fn budget_id(text: &str) -> Result<BudgetId> {
    text.parse().map_err(|_| Error::BudgetNotFound(text.to_owned()))
}

/// Of a limit for each, what the one has used that has used most.
fn used(counters: &Counters, limit: &Limit, now: &Moment) -> i64 {
    let (window, second) = (limit.name.window(), now.second());
    let name = counter(limit.name, limit.scope, &limit.key);
    if !limit.key.is_empty() {
        return counters.used(window, &name, second);
    }
    let all: Vec<&String> = match window {
        Window::Live => counters.live.keys().collect(),
        Window::Minute => counters.minute.keys().collect(),
        Window::Day => counters.day.keys().collect(),
        Window::Month => counters.month.keys().collect(),
        Window::Budget => Vec::new(),
    };
    let each = all.into_iter().filter(|counter| counter.starts_with(&name));
    each.map(|counter| counters.used(window, counter, second)).max().unwrap_or_default()
}

fn shown(limit: &Limit, used: i64, now: &Moment) -> pb::Limit {
    pb::Limit {
        limit: limit.name.to_string(),
        scope: limit.scope.to_string(),
        key: limit.key.clone(),
        value: limit.terms.value,
        used,
        reset_time: limit.name.window().ends(now).map(to_proto),
        queue_ms: limit.terms.queue_ms,
    }
}

impl From<budgets::Budget> for pb::Budget {
    fn from(budget: budgets::Budget) -> pb::Budget {
        pb::Budget {
            budget_id: budget.id.to_string(),
            name: budget.name,
            amount_micros: budget.amount_micros,
            spent_micros: budget.spent_micros,
            reserved_micros: budget.reserved_micros,
            currency: CURRENCY.to_owned(),
        }
    }
}
