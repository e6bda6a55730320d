// The planted workload: a dependent chain of multiply-adds of a given length.
//
// Every iteration needs the result of the one before, so no compiler can shorten the chain, and its
// duration is proportional to its length. The source compiles to a library, and with LOCKSTEP_MAIN to
// a program.

#include <cstdint>

// Not inlined, and aligned: every caller runs the same machine code.
extern "C" __attribute__((noinline, aligned(64))) double lockstep_spin(int64_t n, double seed) {
  // The value tends to 1 and never overflows or becomes denormal, which would change the speed.
  // Both constants are exact, so Python computes the same unless the operations are fused.
  const double a = 1.0 - 1.0 / (1 << 20);
  const double b = 1.0 / (1 << 20);
  double x = seed;
  for (int64_t i = 0; i < n; ++i) {
    x = x * a + b;
  }
  return x;
}

#ifdef LOCKSTEP_MAIN
#include <cstdio>
#include <cstdlib>

int main(int, char** argv) {
  std::printf("%.17g\n", lockstep_spin(std::atoll(argv[1]), 0.5));
  return 0;
}
#endif
