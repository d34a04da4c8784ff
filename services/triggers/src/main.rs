//! The triggers service: everything that starts a turn but a person.

use chassis::Command;
use clap::Parser as _;
use tokio::net::TcpListener;
use triggers::Config;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = Config::parse();
    let _telemetry = chassis::telemetry::init("triggers", &config.chassis.telemetry)?;
    match config.command {
        Some(Command::Migrate) => triggers::migrate(&config).await,
        None => {
            let listener = TcpListener::bind(config.listen).await?;
            triggers::serve(config, listener, chassis::stop_signal()).await
        }
    }
}
