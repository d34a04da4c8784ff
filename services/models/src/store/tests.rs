mod changes;
mod ledger;
mod plans;
