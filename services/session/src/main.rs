//! The session service: durable sessions, the turn queue and the loop.

use clap::Parser as _;
use session::{Command, Config};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    let _telemetry = chassis::telemetry::init("session", &config.serve.chassis.telemetry)?;
    match config.command {
        Some(Command::Migrate) => session::migrate(&config.serve).await,
        Some(Command::MintKey { tenant, subject, scopes }) => {
            session::mint_key(&config.serve, tenant, subject, &scopes).await
        }
        None => {
            let listener = TcpListener::bind(config.serve.listen).await?;
            session::serve(config.serve, listener, chassis::stop_signal()).await
        }
    }
}
