//! Writes model files with random weights: what the firmware is built with where nothing is trained.
//!
//! `cargo run -p kiloformer-tests --example random_models -- FOLDER` writes `fixed.kfm`, `half.kfm`
//! (the shape of the model that ships) and `tiny.kfm` (for 16 KB of RAM).

use std::path::PathBuf;

use kiloformer_tests::random_model::{like_g2p, random_model, tiny};
use model_format::config::Precision::{FixedPoint, HalfFloat};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("the folder to write to"));
    std::fs::create_dir_all(&folder)?;
    for (name, precision, config) in [
        ("fixed.kfm", FixedPoint, like_g2p()),
        ("half.kfm", HalfFloat, like_g2p()),
        ("tiny.kfm", FixedPoint, tiny()),
    ] {
        let path = folder.join(name);
        let file = random_model(precision, &config, 1);
        std::fs::write(&path, &*file)?;
        println!("{}: {} bytes", path.display(), file.len());
    }
    Ok(())
}
