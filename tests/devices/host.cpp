// The kernels' numbers, one launch at a time: reads requests from stdin, one line of text and then arrays, and answers with the
// array that was written.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "host.h"

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
