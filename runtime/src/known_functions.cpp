// The functions of libm and libc that generated code calls: those that it names, and those that LLVM makes of its
// operations. They are found without a dynamic loader, in static binaries, too.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "code.hpp"

namespace dhlo {
namespace {

struct Known {
  const char* name;
  const void* function;
};

template <class Function>
const void* address(Function* function) {
  return reinterpret_cast<const void*>(function);
}

using One = double(double);
using Two = double(double, double);
using OneF = float(float);
using TwoF = float(float, float);

#define DHLO_KNOWN(Type, name) {#name, address<Type>(::name)}

// Sorted by name.
const Known kKnown[] = {
    DHLO_KNOWN(One, acos),
    DHLO_KNOWN(One, acosh),
    DHLO_KNOWN(One, asin),
    DHLO_KNOWN(One, asinh),
    DHLO_KNOWN(One, atan),
    DHLO_KNOWN(Two, atan2),
    DHLO_KNOWN(One, atanh),
    {"bcmp", address<int(const void*, const void*, size_t)>(std::memcmp)},
    DHLO_KNOWN(One, cbrt),
    DHLO_KNOWN(One, ceil),
    DHLO_KNOWN(OneF, ceilf),
    DHLO_KNOWN(One, cos),
    DHLO_KNOWN(OneF, cosf),
    DHLO_KNOWN(One, cosh),
    DHLO_KNOWN(One, erf),
    DHLO_KNOWN(One, erfc),
    DHLO_KNOWN(One, exp),
    DHLO_KNOWN(One, exp10),
    DHLO_KNOWN(One, exp2),
    DHLO_KNOWN(OneF, exp2f),
    DHLO_KNOWN(OneF, expf),
    DHLO_KNOWN(One, expm1),
    DHLO_KNOWN(One, floor),
    DHLO_KNOWN(OneF, floorf),
    DHLO_KNOWN(double(double, double, double), fma),
    DHLO_KNOWN(float(float, float, float), fmaf),
    DHLO_KNOWN(Two, fmax),
    DHLO_KNOWN(TwoF, fmaxf),
    DHLO_KNOWN(Two, fmin),
    DHLO_KNOWN(TwoF, fminf),
    DHLO_KNOWN(Two, fmod),
    DHLO_KNOWN(TwoF, fmodf),
    DHLO_KNOWN(double(double, int), ldexp),
    DHLO_KNOWN(float(float, int), ldexpf),
    DHLO_KNOWN(One, lgamma),
    DHLO_KNOWN(One, log),
    DHLO_KNOWN(One, log10),
    DHLO_KNOWN(One, log1p),
    DHLO_KNOWN(One, log2),
    DHLO_KNOWN(OneF, log2f),
    DHLO_KNOWN(OneF, logf),
    DHLO_KNOWN(int(const void*, const void*, size_t), memcmp),
    DHLO_KNOWN(void*(void*, const void*, size_t), memcpy),
    DHLO_KNOWN(void*(void*, const void*, size_t), memmove),
    DHLO_KNOWN(void*(void*, int, size_t), memset),
    DHLO_KNOWN(One, nearbyint),
    DHLO_KNOWN(OneF, nearbyintf),
    DHLO_KNOWN(Two, pow),
    DHLO_KNOWN(TwoF, powf),
    DHLO_KNOWN(One, rint),
    DHLO_KNOWN(OneF, rintf),
    DHLO_KNOWN(One, round),
    DHLO_KNOWN(One, roundeven),
    DHLO_KNOWN(OneF, roundevenf),
    DHLO_KNOWN(OneF, roundf),
    DHLO_KNOWN(One, sin),
    DHLO_KNOWN(void(double, double*, double*), sincos),
    DHLO_KNOWN(void(float, float*, float*), sincosf),
    DHLO_KNOWN(OneF, sinf),
    DHLO_KNOWN(One, sinh),
    DHLO_KNOWN(One, sqrt),
    DHLO_KNOWN(OneF, sqrtf),
    DHLO_KNOWN(One, tan),
    DHLO_KNOWN(One, tanh),
    DHLO_KNOWN(One, tgamma),
    DHLO_KNOWN(One, trunc),
    DHLO_KNOWN(OneF, truncf),
};

#undef DHLO_KNOWN

}  // namespace

const void* known_function(const char* name) {
  const auto* found =
      std::lower_bound(std::begin(kKnown), std::end(kKnown), name,
                       [](const Known& known, const char* x) { return std::strcmp(known.name, x) < 0; });
  return found != std::end(kKnown) && std::strcmp(found->name, name) == 0 ? found->function : nullptr;
}

}  // namespace dhlo
