// out[e] = tree over k of round(w_k x_k[e]), or out[e] = round(out[e] + that): the tree of gpu::Combine.

struct Terms {
    const void *x[16];
    float w[16];
};

// The sum of v[I..J]: a node splits at the largest power of two below its number of terms.
template <int I, int J> __device__ __forceinline__ float tree(const float *v) {
    if constexpr (J - I == 1) {
        return v[I];
    } else {
        constexpr int N = J - I;
        constexpr int HALF = N > 8 ? 8 : N > 4 ? 4 : N > 2 ? 2 : 1;
        return __fadd_rn(tree<I, I + HALF>(v), tree<I + HALF, J>(v));
    }
}

// Four numbers, read at once: a thread writes 16 bytes of the result, so that those of a warp are in one piece
// whatever format it reads.
template <class T> struct Four {
    uint2 raw;

    __device__ __forceinline__ T get(int i) const { return {(unsigned short)((i < 2 ? raw.x : raw.y) >> i % 2 * 16)}; }
    static __device__ __forceinline__ Four at(const T *from) { return {*(const uint2 *)from}; }
};

template <> struct Four<float> {
    Word<float> word;

    __device__ __forceinline__ float get(int i) const { return word.get(i); }
    static __device__ __forceinline__ Four at(const float *from) { return {load(from)}; }
};

template <class T, int K, bool ADD>
__device__ __forceinline__ void combine_four(const Four<T> *x, const Terms &terms, float *out) {
    Word<float> sum;
    if (ADD) sum = load(out);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v[K];
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = __fmul_rn(terms.w[k], widen(x[k].get(i)));
        float value = tree<0, K>(v);
        sum.set(i, ADD ? __fadd_rn(sum.get(i), value) : value);
    }
    store(out, sum);
}

template <class T, int K, bool ADD> __device__ __forceinline__ void combine(const Terms &terms, float *out, const Split &split) {
    const int GROUP = Word<T>::SIZE;
    // Few narrow terms: two fours at a time, or too few bytes are on their way to keep the memory busy.
    const int TIMES = sizeof(T) < 4 && K <= 8 ? 2 : 1;
    u64 fours = split.groups * (GROUP / 4);
    for (u64 first = thread_number(); first < fours; first += TIMES * thread_count()) {
        Four<T> x[TIMES][K];
#pragma unroll
        for (int t = 0; t < TIMES; t++) {
            u64 four = first + t * thread_count();
            if (four < fours) {
#pragma unroll
                for (int k = 0; k < K; k++) x[t][k] = Four<T>::at((const T *)terms.x[k] + split.head + four * 4);
            }
        }
#pragma unroll
        for (int t = 0; t < TIMES; t++) {
            u64 four = first + t * thread_count();
            if (four < fours) combine_four<T, K, ADD>(x[t], terms, out + split.head + four * 4);
        }
    }
    for (u64 i = thread_number(); i < split.length - split.groups * GROUP; i += thread_count()) {
        u64 e = single<GROUP>(split, i);
        float v[K];
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = __fmul_rn(terms.w[k], widen(((const T *)terms.x[k])[e]));
        float value = tree<0, K>(v);
        out[e] = ADD ? __fadd_rn(out[e], value) : value;
    }
}

#define COMBINE(T, NAME, K)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) set_##NAME##_##K(const Terms terms, float *out, const Split split) { \
        combine<T, K, false>(terms, out, split);                                                                        \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) add_##NAME##_##K(const Terms terms, float *out, const Split split) { \
        combine<T, K, true>(terms, out, split);                                                                         \
    }

#define COMBINE_ALL(EACH)                                                                                               \
    EACH(1) EACH(2) EACH(3) EACH(4) EACH(5) EACH(6) EACH(7) EACH(8)                                                     \
    EACH(9) EACH(10) EACH(11) EACH(12) EACH(13) EACH(14) EACH(15) EACH(16)

#define COMBINE_F32(K) COMBINE(float, f32, K)
#define COMBINE_BF16(K) COMBINE(bf16, bf16, K)
#define COMBINE_F16(K) COMBINE(f16, f16, K)
COMBINE_ALL(COMBINE_F32)
COMBINE_ALL(COMBINE_BF16)
COMBINE_ALL(COMBINE_F16)
