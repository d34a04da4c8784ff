mod ledger;
mod plans;
