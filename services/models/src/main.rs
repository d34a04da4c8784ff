//! The models service: one way to every language model.

use chassis::Command;
use clap::Parser;
use models::Config;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    let _telemetry = chassis::telemetry::init("models", &config.chassis.telemetry)?;
    match config.command {
        Some(Command::Migrate) => models::migrate(&config).await,
        None => {
            let listener = TcpListener::bind(config.listen).await?;
            models::serve(config, listener, chassis::stop_signal()).await
        }
    }
}
