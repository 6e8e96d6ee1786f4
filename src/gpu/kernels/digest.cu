// The digest of a vector's bits: hashes of every element with its place, added up modulo 2^64, so that threads may add in any
// order. Within a place, different bits have different hashes. Sums are spread, so that few threads wait for each other.

const u32 DIGEST_SUMS = 256;

extern "C" __global__ void __launch_bounds__(256) digest(const float *x, u64 length, u64 *sums) {
    u64 sum = 0;
    for (u64 i = thread_number(); i < length; i += thread_count()) {
        u64 hash = (u64)__float_as_uint(x[i]) ^ i * 0x9e3779b97f4a7c15ull;
        hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
        sum += hash ^ hash >> 32;
    }
    atomicAdd(sums + thread_number() % DIGEST_SUMS, sum);
}
