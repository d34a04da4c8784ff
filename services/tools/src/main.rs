//! The tools service: runs tools for agents, in a sandbox.

use chassis::Command;
use clap::Parser as _;
use tokio::net::TcpListener;
use tools::Config;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    let _telemetry = chassis::telemetry::init("tools", &config.chassis.telemetry)?;
    match config.command {
        Some(Command::Migrate) => tools::migrate(&config).await,
        None => {
            let listener = TcpListener::bind(config.listen).await?;
            tools::serve(config, listener, chassis::stop_signal()).await
        }
    }
}
