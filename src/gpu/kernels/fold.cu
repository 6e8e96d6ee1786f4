// The sketch of gpu::signed_fold: block b of the message is added to the sums at a rotation of its own, with the signs
// first[s_b + j] second[t_b + j]. Every stripe of consecutive blocks has sums of its own, [stripes x 2 buckets], added up
// afterwards in f64; within a stripe, blocks are added in their order.

extern "C" __global__ void __launch_bounds__(256)
signed_fold(const float *x, u64 length, u32 buckets, const signed char *first, const signed char *second, const u32 *places, u32 stripes,
            float *sums) {
    u64 blocks = (length + buckets - 1) / buckets;
    u64 slots = 2 * (u64)buckets;
    for (u64 i = thread_number(); i < stripes * slots; i += thread_count()) {
        u64 stripe = i / slots;
        u32 slot = (u32)(i % slots);
        u64 end = blocks * (stripe + 1) / stripes;
        float sum = 0.0f;
        for (u64 b = blocks * stripe / stripes; b < end; b++) {
            u32 rotation = places[3 * b];
            u32 j = slot - rotation;
            if (slot < rotation || j >= buckets || b * buckets + j >= length) continue;
            float sign = (float)(first[places[3 * b + 1] + j] * second[places[3 * b + 2] + j]);
            sum = __fadd_rn(sum, __fmul_rn(x[b * buckets + j], sign));
        }
        sums[i] = sum;
    }
}
