// The kernels' own text as plain C++, so that it can run where there is no GPU: a thread of a launch is a turn of a loop.
#include <algorithm>
#include <cmath>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct Place {
    unsigned x;
};
static thread_local Place blockIdx, threadIdx, blockDim, gridDim;
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return std::sqrt(x); }
// Threads come one after the other, so each is a warp of its own: launches with one thread per block.
static inline unsigned __shfl_xor_sync(unsigned, unsigned value, int) { return value; }
static inline void atomicMax(unsigned *top, unsigned value) { *top = std::max(*top, value); }
static inline void atomicAdd(unsigned long long *sum, unsigned long long value) { *sum += value; }
using std::max;

#include "numbers.cuh"

// In place of the two instructions that convert half precision.
inline float widen(f16 x) {
    unsigned sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fff;
    if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    float value = magnitude < 0x400 ? magnitude * 0x1p-24f : __uint_as_float((magnitude << 13) + (112u << 23));
    return __uint_as_float(sign | __float_as_uint(value));
}
inline void narrow(float x, f16 &out) {
    unsigned sign = __float_as_uint(x) >> 16 & 0x8000, bits = __float_as_uint(x) & 0x7fffffff;
    unsigned half;
    if (bits > 0x7f800000) {
        half = 0x7e00;
    } else if (bits >= 0x477ff000) {
        half = 0x7c00;
    } else if (bits < 0x38800000) {
        // Adding 0.5 leaves multiples of 2^-24, rounded to nearest with ties to even, in the low bits.
        half = __float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000;
    } else {
        half = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    }
    out.bits = (unsigned short)(sign | half);
}

#include "combine.cu"
#include "cast.cu"
#include "fold.cu"
#include "scan.cu"
#include "adamw.cu"
#include "digest.cu"

template <class Kernel> static void launch(Kernel kernel) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) kernel();
}
