// erf and GELU (x / 2 times 1 + erf(x / sqrt 2)), which needs erfc itself where x is negative.
#include "exponential.h"

// exp(z^2) erfc(z) for 0 <= z <= 10.3: (1 + z) times it is a polynomial of (z - 2) / (z + 2), relative 2e-8.
static inline float scaled_complement(float z) {
    const float t = (z - 2.0f) / (z + 2.0f);
    float series = -0.000148141058f;
    series = fma_(series, t, -0.00058441225f);
    series = fma_(series, t, 0.000195863453f);
    series = fma_(series, t, 0.003889994f);
    series = fma_(series, t, -0.000542036083f);
    series = fma_(series, t, -0.0252353195f);
    series = fma_(series, t, 0.0425399356f);
    series = fma_(series, t, 0.0378133319f);
    series = fma_(series, t, -0.259974986f);
    series = fma_(series, t, 0.766187012f);
    return series / (1.0f + z);
}

static inline float erf_of(float x) {
    const float z = at_most(magnitude(x), 9.0f);
    const float square = z * z;
    // erf x / x for |x| <= 1: relative 3e-11.
    float series = -9.63750244e-06f;
    series = fma_(series, square, 0.000112556387f);
    series = fma_(series, square, -0.000848266238f);
    series = fma_(series, square, 0.00522093521f);
    series = fma_(series, square, -0.0268653966f);
    series = fma_(series, square, 0.112837821f);
    series = fma_(series, square, -0.376126379f);
    series = fma_(series, square, 1.12837923f);
    const float complement =
        value_of(exponential_with(-square, -fma_(z, z, -square))) * scaled_complement(z);
    return with_sign(z < 1.0f ? series * z : 1.0f - complement, x);
}

static inline float gelu_of(float x) {
    const float size = at_most(magnitude(x), 14.5f);
    const float square = size * size;
    const float rest = fma_(size, size, -square);
    const struct exponential e = exponential_with(-0.5f * square, -0.5f * rest);
    const float tail = 0.5f * scaled_complement(size * 0.707106781f) * e.m;
    const float below = scaled(at_least(x, -14.5f) * tail, e.n);
    return x < 0.0f ? below : x * (1.0f - scaled(tail, e.n));
}

KERNEL(erf, erf_of(a[i]))
KERNEL(gelu, gelu_of(a[i]))
