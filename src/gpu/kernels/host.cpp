// The kernels' own text as plain C++, so that their numbers can be checked where there is no GPU: a launch is two loops.
// Reads requests from stdin, one line of text and then arrays, and answers with the array that was written.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct Place {
    unsigned x;
};
static Place blockIdx, threadIdx, blockDim, gridDim;
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

typedef void (*CombineKernel)(const Terms, float *, const Split);
static std::map<std::string, CombineKernel> combines;
typedef void (*CastKernel)(const void *, void *, float, const Split);
static std::map<std::string, CastKernel> casts;
typedef void (*ScanKernel)(const void *, u32 *, const Split);
static std::map<std::string, ScanKernel> scans;

static void list_kernels() {
#define LIST_COMBINE(NAME, K) combines["set_" #NAME "_" #K] = set_##NAME##_##K, combines["add_" #NAME "_" #K] = add_##NAME##_##K;
#define LIST_F32(K) LIST_COMBINE(f32, K)
#define LIST_BF16(K) LIST_COMBINE(bf16, K)
#define LIST_F16(K) LIST_COMBINE(f16, K)
    COMBINE_ALL(LIST_F32) COMBINE_ALL(LIST_BF16) COMBINE_ALL(LIST_F16)
#define LIST_CAST(S, D, NAME)                                                                                           \
    casts["cast_" #NAME] = [](const void *x, void *out, float scale, const Split split) { cast_##NAME((const S *)x, (D *)out, scale, split); };
    CAST_ALL(LIST_CAST)
#define LIST_SCAN(T, NAME) scans["scan_" #NAME] = [](const void *x, u32 *top, const Split split) { scan_##NAME((const T *)x, top, split); };
    LIST_SCAN(float, f32) LIST_SCAN(bf16, bf16) LIST_SCAN(f16, f16)
}

template <class Kernel> static void launch(Kernel kernel) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) kernel();
}

// An array as far from a 16-byte boundary as the request says, with a guard behind it.
struct Array {
    std::vector<uint4> memory;
    size_t bytes, shift;
    unsigned char *data() { return (unsigned char *)memory.data() + shift; }
};

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static Array read_array() {
    unsigned long long header[2];
    if (fread(header, 8, 2, stdin) != 2) fail("an array's header is missing");
    Array array = {std::vector<uint4>(header[0] / 16 + 4, uint4{0xabababab, 0xabababab, 0xabababab, 0xabababab}), header[0], header[1]};
    if (fread(array.data(), 1, array.bytes, stdin) != array.bytes) fail("an array is short");
    return array;
}

int main() {
    list_kernels();
    char name[64];
    unsigned long long inputs, length, head, groups, buckets, stripes;
    float numbers[16];
    while (scanf("%63s %u %u %llu %llu %llu %llu %llu %llu", name, &gridDim.x, &blockDim.x, &inputs, &length, &head, &groups, &buckets,
                 &stripes) == 9) {
        if (getchar() != '\n' || fread(numbers, 4, 16, stdin) != 16) fail("a request is short");
        Array out = read_array();
        std::vector<Array> in;
        for (size_t i = 0; i < inputs; i++) in.push_back(read_array());
        Split split = {length, head, groups};
        if (combines.count(name)) {
            Terms terms;
            for (size_t i = 0; i < inputs; i++) terms.x[i] = in[i].data();
            memcpy(terms.w, numbers, sizeof numbers);
            CombineKernel kernel = combines[name];
            launch([&] { kernel(terms, (float *)out.data(), split); });
        } else if (casts.count(name)) {
            CastKernel kernel = casts[name];
            launch([&] { kernel(in[0].data(), out.data(), numbers[0], split); });
        } else if (scans.count(name)) {
            ScanKernel kernel = scans[name];
            launch([&] { kernel(in[0].data(), (u32 *)out.data(), split); });
        } else if (!strcmp(name, "signed_fold")) {
            launch([&] {
                signed_fold((const float *)in[0].data(), length, (u32)buckets, (const signed char *)in[1].data(),
                            (const signed char *)in[2].data(), (const u32 *)in[3].data(), (u32)stripes, (float *)out.data());
            });
        } else if (!strcmp(name, "digest")) {
            launch([&] { digest((const float *)in[0].data(), length, (u64 *)out.data()); });
        } else if (!strcmp(name, "squares")) {
            launch([&] { squares((const float *)in[0].data(), length, (double *)out.data()); });
        } else if (!strcmp(name, "add_up")) {
            launch([&] { add_up((const double *)in[0].data(), length, (double *)out.data()); });
        } else if (!strcmp(name, "adamw")) {
            // Parameters and both moments are one array here.
            float *p = (float *)out.data();
            Rates rates;
            memcpy(&rates, numbers, sizeof rates);
            launch([&] { adamw(p, p + length, p + 2 * length, (const float *)in[0].data(), length, rates); });
        } else {
            fail("no such kernel");
        }
        for (size_t i = out.shift + out.bytes; i < out.memory.size() * 16; i++)
            if (((unsigned char *)out.memory.data())[i] != 0xab) fail("written beyond the end");
        for (size_t i = 0; i < out.shift; i++)
            if (((unsigned char *)out.memory.data())[i] != 0xab) fail("written before the beginning");
        fwrite(out.data(), 1, out.bytes, stdout);
        fflush(stdout);
    }
}
