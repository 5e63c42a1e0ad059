#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let script = orchestrator::llm::Script::parse(&std::fs::read_to_string(&args[1]).unwrap()).unwrap();
    let listener = tokio::net::TcpListener::bind(&args[2]).await.unwrap();
    orchestrator::llm::serve(listener, script, tokio_util::sync::CancellationToken::new()).await.unwrap();
}
