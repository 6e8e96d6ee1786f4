// out[e] = narrow(round(scale x[e])): a gradient as it travels, or a decoded gradient as a model wants it.

template <class S, class D> __device__ __forceinline__ void cast(const S *x, D *out, float scale, const Split &split) {
    const int GROUP = Word<S>::SIZE > Word<D>::SIZE ? Word<S>::SIZE : Word<D>::SIZE;
    const int IN = GROUP / Word<S>::SIZE, OUT = GROUP / Word<D>::SIZE;
    for (u64 g = thread_number(); g < split.groups; g += thread_count()) {
        u64 at = split.head + g * GROUP;
        Word<S> from[IN];
        Word<D> to[OUT];
#pragma unroll
        for (int i = 0; i < IN; i++) from[i] = load(x + at + i * Word<S>::SIZE);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            D value;
            narrow(__fmul_rn(scale, widen(from[i / Word<S>::SIZE].get(i % Word<S>::SIZE))), value);
            to[i / Word<D>::SIZE].set(i % Word<D>::SIZE, value);
        }
#pragma unroll
        for (int i = 0; i < OUT; i++) store(out + at + i * Word<D>::SIZE, to[i]);
    }
    for (u64 i = thread_number(); i < split.length - split.groups * GROUP; i += thread_count()) {
        u64 e = single<GROUP>(split, i);
        narrow(__fmul_rn(scale, widen(x[e])), out[e]);
    }
}

#define CAST(S, D, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) cast_##NAME(const S *x, D *out, float scale, const Split split) {  \
        cast<S, D>(x, out, scale, split);                                                                               \
    }

#define CAST_ALL(EACH)                                                                                                  \
    EACH(float, float, f32_f32) EACH(float, bf16, f32_bf16) EACH(float, f16, f32_f16)                                   \
    EACH(bf16, float, bf16_f32) EACH(bf16, bf16, bf16_bf16) EACH(bf16, f16, bf16_f16)                                   \
    EACH(f16, float, f16_f32) EACH(f16, bf16, f16_bf16) EACH(f16, f16, f16_f16)
CAST_ALL(CAST)
