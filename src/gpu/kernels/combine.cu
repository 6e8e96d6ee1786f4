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

template <class T, int K, bool ADD> __device__ __forceinline__ void combine(const Terms &terms, float *out, const Split &split) {
    const int GROUP = Word<T>::SIZE;
    for (u64 g = thread_number(); g < split.groups; g += thread_count()) {
        u64 at = split.head + g * GROUP;
        Word<T> x[K];
#pragma unroll
        for (int k = 0; k < K; k++) x[k] = load((const T *)terms.x[k] + at);
#pragma unroll
        for (int quarter = 0; quarter < GROUP; quarter += 4) {
            Word<float> sum;
            if (ADD) sum = load(out + at + quarter);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float v[K];
#pragma unroll
                for (int k = 0; k < K; k++) v[k] = __fmul_rn(terms.w[k], widen(x[k].get(quarter + i)));
                float value = tree<0, K>(v);
                sum.set(i, ADD ? __fadd_rn(sum.get(i), value) : value);
            }
            store(out + at + quarter, sum);
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
