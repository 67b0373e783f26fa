//! Whole generations: 32 source ids, 32 generated ones.
//!
//! `cargo bench -p kiloformer-benches` and not `--workspace`, which would bring features that count.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiloformer_benches::{LEN, Numbers, Size, source};
use model_format::AlignedBytes;
use runtime::{FixedPoint, GenerateOptions, HalfFloat, Session, TypedModel};

fn generation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generation");
    group.throughput(Throughput::Elements(LEN.into())).measurement_time(Duration::from_secs(5));
    for size in [Size::S, Size::M] {
        for numbers in Numbers::ALL {
            let file = size.model(numbers);
            let id = BenchmarkId::new(format!("{numbers:?}"), format!("{size:?}"));
            group.bench_function(id, |bencher| match numbers {
                Numbers::W8A16 | Numbers::W4A16 => generate::<FixedPoint>(bencher, &file),
                Numbers::HalfFloat => generate::<HalfFloat>(bencher, &file),
            });
        }
    }
    group.finish();
}

fn generate<P: runtime::Precision>(bencher: &mut criterion::Bencher<'_>, file: &AlignedBytes) {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound model");
    let mut arena = AlignedBytes::filled(0, model.plan().total);
    let mut session = Session::new(&model, &mut arena).expect("an arena as planned");
    let source = source(model.model().config());
    bencher.iter(|| {
        let generation = session.generate(&source, &GenerateOptions::default());
        let count = generation.expect("a sound source").map(black_box).count();
        assert_eq!(count, usize::from(LEN));
    });
}

criterion_group!(benches, generation);
criterion_main!(benches);
