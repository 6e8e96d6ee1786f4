// The bits of the largest magnitude, as a u32 that must be 0 before: finite numbers are ordered as their bits are, then
// comes infinity, then NaN.

template <class T> __device__ __forceinline__ void scan(const T *x, u32 *top, const Split &split) {
    const int GROUP = Word<T>::SIZE;
    u32 most = 0;
    for (u64 g = thread_number(); g < split.groups; g += thread_count()) {
        Word<T> word = load(x + split.head + g * GROUP);
#pragma unroll
        for (int i = 0; i < GROUP; i++) most = max(most, __float_as_uint(widen(word.get(i))) & 0x7fffffff);
    }
    for (u64 i = thread_number(); i < split.length - split.groups * GROUP; i += thread_count()) {
        most = max(most, __float_as_uint(widen(x[single<GROUP>(split, i)])) & 0x7fffffff);
    }
    for (int distance = 16; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(0xffffffff, most, distance));
    if (threadIdx.x % 32 == 0) atomicMax(top, most);
}

#define SCAN(T, NAME)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) scan_##NAME(const T *x, u32 *top, const Split split) { scan<T>(x, top, split); }
SCAN(float, f32)
SCAN(bf16, bf16)
SCAN(f16, f16)
