// The planted workload for Google Benchmark: `spin_google [--benchmark_...] N_ITERATIONS`.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>

extern "C" double lockstep_spin(int64_t n, double seed);

static void Spin(benchmark::State& state, int64_t n) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(lockstep_spin(n, 0.5));
  }
}

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);  // which removes its own options
  // The measuring time counts wall time, as with every other tool.
  benchmark::RegisterBenchmark("spin", Spin, std::atoll(argv[1]))->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
