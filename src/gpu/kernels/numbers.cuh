// Number formats, and numbers in 16-byte words. Every product and sum is rounded to f32 on its own (no fused
// multiply-add), which is what makes the device's sums the same bits as the CPU's.

typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 {
    unsigned short bits;
};
struct f16 {
    unsigned short bits;
};

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

__device__ __forceinline__ void narrow(float x, float &out) { out = x; }

// Round to nearest, ties to even; a NaN stays one.
__device__ __forceinline__ void narrow(float x, bf16 &out) {
    u32 bits = __float_as_uint(x);
    u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    out.bits = (unsigned short)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

#ifdef __CUDACC__
__device__ __forceinline__ float widen(f16 x) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
    return out;
}
__device__ __forceinline__ void narrow(float x, f16 &out) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x)); }
#endif

// 16 bytes of memory, read and written at once.
template <class T> struct Word {
    static const int SIZE = 16 / sizeof(T);
    uint4 raw;

    __device__ __forceinline__ u32 part(int i) const { return i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w; }
    __device__ __forceinline__ void set_part(int i, u32 value) {
        if (i == 0) raw.x = value;
        if (i == 1) raw.y = value;
        if (i == 2) raw.z = value;
        if (i == 3) raw.w = value;
    }
    __device__ __forceinline__ T get(int i) const;
    __device__ __forceinline__ void set(int i, T value);
};

template <> __device__ __forceinline__ float Word<float>::get(int i) const { return __uint_as_float(part(i)); }
template <> __device__ __forceinline__ bf16 Word<bf16>::get(int i) const { return {(unsigned short)(part(i / 2) >> i % 2 * 16)}; }
template <> __device__ __forceinline__ f16 Word<f16>::get(int i) const { return {(unsigned short)(part(i / 2) >> i % 2 * 16)}; }

template <> __device__ __forceinline__ void Word<float>::set(int i, float value) { set_part(i, __float_as_uint(value)); }
template <> __device__ __forceinline__ void Word<bf16>::set(int i, bf16 value) {
    set_part(i / 2, i % 2 ? (part(i / 2) & 0xffff) | (u32)value.bits << 16 : value.bits);
}
template <> __device__ __forceinline__ void Word<f16>::set(int i, f16 value) {
    set_part(i / 2, i % 2 ? (part(i / 2) & 0xffff) | (u32)value.bits << 16 : value.bits);
}

template <class T> __device__ __forceinline__ Word<T> load(const T *from) { return {*(const uint4 *)from}; }
template <class T> __device__ __forceinline__ void store(T *to, const Word<T> &word) { *(uint4 *)to = word.raw; }

// This thread's number among all of the launch, and how many there are.
__device__ __forceinline__ u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// Which elements go by 16-byte words: groups of equal size from `head` on, `groups` of them. The others go one by one.
struct Split {
    u64 length;
    u64 head;
    u64 groups;
};

// The element that is number `i` of those which go one by one.
template <int GROUP> __device__ __forceinline__ u64 single(const Split &split, u64 i) {
    return i < split.head ? i : i + split.groups * GROUP;
}
