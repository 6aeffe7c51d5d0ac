//! Reads the beginning of a file with tokio-uring, even where the kernel refuses io_uring.

fn main() -> std::io::Result<()> {
    println!("served by {:?}", anyring::install()?);
    tokio_uring::start(async {
        let file = tokio_uring::fs::File::open(std::env::args().nth(1).unwrap_or("Cargo.toml".to_owned())).await?;
        let (result, _text) = file.read_at(vec![0; 64], 0).await;
        println!("{} bytes", result?);
        file.close().await
    })
}
