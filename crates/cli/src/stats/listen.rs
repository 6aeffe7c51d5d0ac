//! `anyring stats --listen`: serves the counters by HTTP to clients on this machine. Requests are served one at a
//! time, each within a few seconds, so a slow client delays the others no longer than that.

use crate::errno;
use crate::failure::Failure;
use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Time limit of a request and its answer.
const LIMIT: Duration = Duration::from_secs(5);
/// A size in bytes that no request for a page exceeds.
const REQUEST_BYTES: usize = 8192;

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection whose calls have a time limit.
trait Stream: Read + Write {
    fn end_within(&self, time: Duration) -> io::Result<()>;
}

macro_rules! stream {
    ($($stream:ty)*) => {$(
        impl Stream for $stream {
            fn end_within(&self, time: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(time))?;
                self.set_write_timeout(Some(time))
            }
        }
    )*};
}
stream!(TcpStream UnixStream);

/// Answers each request with the text that `metrics` returns at that moment, until a signal ends the process.
pub fn run(address: &str, metrics: impl Fn() -> Result<String, Failure>) -> Result<Infallible, Failure> {
    // An error from the start is reported now, and not to a scraper.
    metrics()?;
    let listener = bind(address).map_err(|why| Failure::own(format!("--listen {address}: {why}")))?;
    loop {
        let stream: io::Result<Box<dyn Stream>> = match &listener {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as _),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Box::new(stream) as _),
        };
        match stream {
            // An error means that the client has gone or is too slow: there is nobody to report it to.
            Ok(mut stream) => _ = handle(&mut *stream, &metrics),
            // For example, there are no free descriptors just now.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn bind(address: &str) -> Result<Listener, String> {
    if address.contains('/') {
        return bind_unix(address).map(Listener::Unix).map_err(|error| errno::of(&error));
    }
    let loopback = address.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback());
    let address =
        loopback.ok_or("neither a loopback address with a port (127.0.0.1:9639) nor a path with a slash")?;
    TcpListener::bind(address).map(Listener::Tcp).map_err(|error| errno::of(&error))
}

/// Binds the socket, replacing one on which no process listens any more.
fn bind_unix(path: &str) -> io::Result<UnixListener> {
    let is_left_over =
        || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left_over() => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

fn handle(stream: &mut dyn Stream, metrics: impl Fn() -> Result<String, Failure>) -> io::Result<()> {
    let end = Instant::now() + LIMIT;
    let until_end = |stream: &dyn Stream| match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        time => stream.end_within(time),
    };
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") && request.len() < REQUEST_BYTES {
        until_end(stream)?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => request.extend(&bytes[..count]),
        }
    }
    let answer = respond(&request, metrics);
    let mut left = answer.as_bytes();
    while !left.is_empty() {
        until_end(stream)?;
        let written = stream.write(left)?;
        left = &left[written..];
    }
    Ok(())
}

fn respond(request: &[u8], metrics: impl Fn() -> Result<String, Failure>) -> String {
    let mut words = request.split(|byte| byte.is_ascii_whitespace());
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => match metrics() {
            Ok(text) => ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text),
            Err(failure) => ("503 Service Unavailable", "text/plain; charset=utf-8", failure.message + "\n"),
        },
        (b"GET" | b"HEAD", _) => ("404 Not Found", "text/plain", "the counters are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET and HEAD\n".to_owned()),
    };
    let length = body.len();
    let body = if method == b"HEAD" { "" } else { &body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
