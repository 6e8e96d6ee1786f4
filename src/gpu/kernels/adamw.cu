// train::AdamW on a device: the squares of a gradient for its norm, and the step, every operation rounded to f32 by itself as
// the CPU rounds it.

// What a step multiplies by; gpu::Rates, member by member.
struct Rates {
    float beta1, beta2, scale, first_scale, second_scale, keep, epsilon;
};

// Every thread's share of the sum of squares.
extern "C" __global__ void __launch_bounds__(256) squares(const float *x, u64 length, double *sums) {
    double sum = 0.0;
    for (u64 i = thread_number(); i < length; i += thread_count()) sum += (double)x[i] * (double)x[i];
    sums[thread_number()] = sum;
}

// Fewer sums of sums.
extern "C" __global__ void __launch_bounds__(256) add_up(const double *x, u64 length, double *sums) {
    double sum = 0.0;
    for (u64 i = thread_number(); i < length; i += thread_count()) sum += x[i];
    sums[thread_number()] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
adamw(float *p, float *m, float *v, const float *g, u64 length, const Rates rates) {
    for (u64 i = thread_number(); i < length; i += thread_count()) {
        float x = __fmul_rn(g[i], rates.scale);
        float first = __fadd_rn(__fmul_rn(rates.beta1, m[i]), __fmul_rn(1.0f - rates.beta1, x));
        float second = __fadd_rn(__fmul_rn(rates.beta2, v[i]), __fmul_rn(__fmul_rn(1.0f - rates.beta2, x), x));
        float root = __fadd_rn(__fsqrt_rn(__fmul_rn(rates.second_scale, second)), rates.epsilon);
        m[i] = first;
        v[i] = second;
        p[i] = __fadd_rn(__fmul_rn(rates.keep, p[i]), -__fdiv_rn(__fmul_rn(rates.first_scale, first), root));
    }
}
