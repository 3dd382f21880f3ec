//! Zenoh: two peers over TCP, plain and with TLS at both ends. Round trips are two publications, one each way, which wait for nothing;
//! streams are publications that block when there is no room. See `turns.py` for what a lane is.
//!
//!     zenoh_lane AUTHORITY CHAIN KEY

use std::error::Error;
use std::io::{BufRead, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::{Config, Session, Wait};

type Failure = Box<dyn Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(20);

struct Lane {
    near: Session,
    _far: Session,
    answers: Receiver<()>,
}

impl Lane {
    fn new(kind: &str, files: &[String]) -> Result<Self, Failure> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let scheme = if kind == "tls" { "tls" } else { "tcp" };
        let host = if kind == "tls" {
            "localhost"
        } else {
            "127.0.0.1"
        };
        let place = format!("{scheme}/{host}:{port}");
        let config = |key: &str| -> Result<Config, Failure> {
            let mut config = Config::default();
            let mut set = |key: &str, value: String| config.insert_json5(key, &value);
            set("mode", "\"peer\"".to_owned())?;
            set("scouting/multicast/enabled", "false".to_owned())?;
            set("scouting/gossip/enabled", "false".to_owned())?;
            if key == "connect/endpoints" {
                set("listen/endpoints", "[]".to_owned())?;
            }
            set(key, format!("[\"{place}\"]"))?;
            if let ([authority, chain, private], "tls") = (files, kind) {
                set(
                    "transport/link/tls/root_ca_certificate",
                    format!("{authority:?}"),
                )?;
                set("transport/link/tls/enable_mtls", "true".to_owned())?;
                for side in ["listen", "connect"] {
                    let certificate = format!("transport/link/tls/{side}_certificate");
                    set(&certificate, format!("{chain:?}"))?;
                    let key = format!("transport/link/tls/{side}_private_key");
                    set(&key, format!("{private:?}"))?;
                }
            }
            Ok(config)
        };
        let far = zenoh::open(config("listen/endpoints")?).wait()?;
        let near = zenoh::open(config("connect/endpoints")?).wait()?;
        let back = far
            .declare_publisher("back")
            .congestion_control(CongestionControl::Block)
            .express(true)
            .wait()?;
        far.declare_subscriber("ask")
            .callback(move |sample| {
                // Who gets no answer says so.
                let _ = back.put(sample.payload().clone()).wait();
            })
            .background()
            .wait()?;
        let end = far
            .declare_publisher("end")
            .congestion_control(CongestionControl::Block)
            .express(true)
            .wait()?;
        far.declare_subscriber("take")
            .callback(move |sample| {
                if sample.payload().len() == 1 {
                    let _ = end.put(ZBytes::from(vec![1])).wait();
                }
            })
            .background()
            .wait()?;
        let (sender, answers) = channel();
        for key in ["back", "end"] {
            let sender = sender.clone();
            near.declare_subscriber(key)
                .callback(move |_| {
                    // Who waited may have given up.
                    let _ = sender.send(());
                })
                .background()
                .wait()?;
        }
        let lane = Self {
            near,
            _far: far,
            answers,
        };
        lane.meet()?;
        Ok(lane)
    }

    /// Declarations take their time to arrive.
    fn meet(&self) -> Result<(), Failure> {
        let begin = Instant::now();
        for key in ["ask", "take"] {
            loop {
                self.put(key, ZBytes::from(vec![1]))?;
                if self
                    .answers
                    .recv_timeout(Duration::from_millis(100))
                    .is_ok()
                {
                    break;
                }
                if begin.elapsed() > PATIENCE {
                    return Err("the two sessions don't hear each other".into());
                }
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        while self.answers.try_recv().is_ok() {}
        Ok(())
    }

    fn put(&self, key: &str, payload: ZBytes) -> Result<(), Failure> {
        self.near
            .put(key, payload)
            .congestion_control(CongestionControl::Block)
            .express(true)
            .wait()
    }

    fn turn(&self, is_stream: bool, bytes: usize, count: usize) -> Result<(), Failure> {
        let message = ZBytes::from(vec![7; bytes]);
        for _ in 0..count {
            if is_stream {
                self.put("take", message.clone())?;
            } else {
                self.put("ask", message.clone())?;
                self.answers.recv_timeout(PATIENCE)?;
            }
        }
        if is_stream {
            self.put("take", ZBytes::from(vec![1]))?;
            self.answers.recv_timeout(PATIENCE)?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let files: Vec<_> = std::env::args().skip(1).collect();
    let plain = Lane::new("plain", &files)?;
    let secure = Lane::new("tls", &files)?;
    println!("ping_zenoh_plain stream_zenoh_plain ping_zenoh_tls stream_zenoh_tls");
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, bytes, count] = words[..] else {
            return Err("expected LANE BYTES COUNT".into());
        };
        let lane = if name.ends_with("tls") {
            &secure
        } else {
            &plain
        };
        let start = Instant::now();
        match lane.turn(name.starts_with("stream"), bytes.parse()?, count.parse()?) {
            Ok(()) => println!("{:.9}", start.elapsed().as_secs_f64()),
            Err(error) => println!("failed {error}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
