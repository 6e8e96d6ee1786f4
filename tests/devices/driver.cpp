// As much of CUDA's driver and of NVRTC as this library calls, on the host: four devices whose kernels are this folder's, compiled
// as C++. Streams are threads that run behind, by a little that differs from time to time, so that whoever does not wait is found
// out; memory has guards, and belongs to a device. A misuse that a driver would punish with garbage ends the process.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "host.h"

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600 };
const int DEVICES = 4;
const size_t GUARD = 64;
const unsigned char UNTOUCHED = 0xab;

[[noreturn]] void die(const char *what) {
    fprintf(stderr, "emulated device: %s\n", what);
    abort();
}

struct Flag {
    std::mutex mutex;
    std::condition_variable changed;
    bool up = false;
    std::chrono::steady_clock::time_point at;

    void raise() {
        std::lock_guard<std::mutex> lock(mutex);
        up = true;
        at = std::chrono::steady_clock::now();
        changed.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return up; });
    }
    bool is_up() {
        std::lock_guard<std::mutex> lock(mutex);
        return up;
    }
};

struct Stream {
    int device;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    bool busy = false, ends = false;
    std::thread thread;

    explicit Stream(int device) : device(device), thread([this] { run(); }) {}
    void run() {
        unsigned state = (unsigned)(size_t)this;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            changed.wait(lock, [&] { return ends || !queue.empty(); });
            if (queue.empty()) return;
            auto work = std::move(queue.front());
            queue.pop_front();
            busy = true;
            lock.unlock();
            state = state * 1664525 + 1013904223;
            if (state >> 28 == 0) std::this_thread::sleep_for(std::chrono::microseconds(state >> 20 & 0xff));
            work();
            lock.lock();
            busy = false;
            changed.notify_all();
        }
    }
    void push(std::function<void()> work) {
        std::lock_guard<std::mutex> lock(mutex);
        queue.push_back(std::move(work));
        changed.notify_all();
    }
    void drain() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return queue.empty() && !busy; });
    }
    void end() {
        drain();
        {
            std::lock_guard<std::mutex> lock(mutex);
            ends = true;
            changed.notify_all();
        }
        thread.join();
    }
};

// Several threads may record and wait for one event.
struct Event {
    int device;
    std::mutex mutex;
    std::shared_ptr<Flag> flag;

    explicit Event(int device) : device(device) {}
    std::shared_ptr<Flag> last() {
        std::lock_guard<std::mutex> lock(mutex);
        return flag;
    }
    std::shared_ptr<Flag> renew() {
        std::lock_guard<std::mutex> lock(mutex);
        return flag = std::make_shared<Flag>();
    }
};

struct Memory {
    size_t bytes;
    int device; // -1: page-locked memory of the host
};

std::mutex memory_mutex;
std::map<size_t, Memory> memory;
size_t used[DEVICES];
std::mutex streams_mutex;
std::vector<Stream *> streams;
thread_local int current = -1;

unsigned char *obtain(size_t bytes, int device) {
    unsigned char *all = (unsigned char *)aligned_alloc(GUARD, (bytes + 3 * GUARD - 1) / GUARD * GUARD);
    memset(all, UNTOUCHED, (bytes + 3 * GUARD - 1) / GUARD * GUARD);
    std::lock_guard<std::mutex> lock(memory_mutex);
    memory[(size_t)all + GUARD] = {bytes, device};
    if (device >= 0) used[device] += bytes;
    return all + GUARD;
}

// The last device has as many bytes as the environment says.
bool has_room(size_t bytes, int device) {
    const char *most = getenv("EMULATED_BYTES_OF_LAST");
    std::lock_guard<std::mutex> lock(memory_mutex);
    return !most || device + 1 < DEVICES || used[device] + bytes <= strtoull(most, nullptr, 10);
}

void release(size_t address) {
    Memory found;
    {
        std::lock_guard<std::mutex> lock(memory_mutex);
        auto at = memory.find(address);
        if (at == memory.end()) die("memory is freed that is not there");
        found = at->second;
        memory.erase(at);
        if (found.device >= 0) used[found.device] -= found.bytes;
    }
    unsigned char *from = (unsigned char *)address;
    for (size_t i = 0; i < GUARD; i++)
        if (from[-1 - (long)i] != UNTOUCHED || from[found.bytes + i] != UNTOUCHED) die("a kernel or a copy wrote beyond its memory");
    // What is read after it was freed is no number.
    memset(from, 0xff, found.bytes);
    free(from - GUARD);
}

// The device of an address, -1 for page-locked memory, -2 for any other; dies if the range is not whole.
int device_of(const void *address, size_t bytes) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto after = memory.upper_bound((size_t)address);
    if (after == memory.begin()) return -2;
    auto at = std::prev(after);
    if ((size_t)address > at->first + at->second.bytes) return -2;
    if ((size_t)address + bytes > at->first + at->second.bytes) die("a copy goes beyond its memory");
    return at->second.device;
}

void must_be_on(int device, const void *address, size_t bytes) {
    if (bytes > 0 && device_of(address, bytes) != device) die("memory of another device, or of none");
}

template <class T> void check_pointer(int device, T *x) {
    // Vectors without elements have no memory.
    if (x && device_of((const void *)x, 0) != device) die("a kernel's argument lies on another device, or on none");
}

using Kernel = std::function<std::function<void()>(int device, void **)>;

// A kernel by its own signature: its arguments are copied when it is launched.
template <class... A, size_t... I> Kernel typed(void (*kernel)(A...), std::index_sequence<I...>) {
    return [kernel](int device, void **from) -> std::function<void()> {
        std::tuple<std::remove_const_t<A>...> values(*(std::remove_const_t<A> *)from[I]...);
        (
            [&] {
                if constexpr (std::is_pointer_v<A>) check_pointer(device, std::get<I>(values));
            }(),
            ...);
        return [kernel, values] { launch([&] { kernel(std::get<I>(values)...); }); };
    };
}
template <class... A> Kernel typed(void (*kernel)(A...)) { return typed(kernel, std::index_sequence_for<A...>()); }

const std::map<std::string, Kernel> &kernels() {
    static const std::map<std::string, Kernel> all = [] {
        std::map<std::string, Kernel> all;
#define ADD(NAME) all[#NAME] = typed(NAME);
#define ADD_COMBINE(NAME, K) ADD(set_##NAME##_##K) ADD(add_##NAME##_##K)
#define ADD_F32(K) ADD_COMBINE(f32, K)
#define ADD_BF16(K) ADD_COMBINE(bf16, K)
#define ADD_F16(K) ADD_COMBINE(f16, K)
        COMBINE_ALL(ADD_F32) COMBINE_ALL(ADD_BF16) COMBINE_ALL(ADD_F16)
#define ADD_CAST(S, D, NAME) ADD(cast_##NAME)
        CAST_ALL(ADD_CAST)
        ADD(scan_f32) ADD(scan_bf16) ADD(scan_f16) ADD(signed_fold) ADD(squares) ADD(add_up) ADD(adamw) ADD(digest)
        return all;
    }();
    return all;
}

Stream *of(void *handle) {
    std::lock_guard<std::mutex> lock(streams_mutex);
    for (Stream *stream : streams)
        if (stream == handle) return stream;
    die("a stream that is not there, or a device's default one");
}

void drain_device(int device) {
    std::vector<Stream *> all;
    {
        std::lock_guard<std::mutex> lock(streams_mutex);
        all = streams;
    }
    for (Stream *stream : all)
        if (stream->device == device) stream->drain();
}

const char IMAGE[] = "\177ELF of an emulated device";

} // namespace

extern "C" {

int cuInit(unsigned) { return SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = DEVICES, SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return ordinal < DEVICES ? (*device = ordinal, SUCCESS) : INVALID_DEVICE; }
int cuDeviceGetName(char *name, int length, int) { return snprintf(name, length, "emulated"), SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case 16: return *value = 2, SUCCESS;  // multiprocessors
    case 75: return *value = 9, SUCCESS;  // compute capability
    case 76: return *value = 0, SUCCESS;
    case 115: return *value = 1, SUCCESS; // memory pools
    default: return INVALID_VALUE;
    }
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)(size_t)(device + 1), SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxSetCurrent(void *context) { return current = (int)(size_t)context - 1, SUCCESS; }
int cuCtxGetCurrent(void **context) { return *context = (void *)(size_t)(current + 1), SUCCESS; }
int cuCtxSynchronize() { return drain_device(current), SUCCESS; }
int cuGetErrorName(int, const char **name) { return *name = "an error of the emulated device", SUCCESS; }
int cuGetErrorString(int, const char **name) { return *name = "an error of the emulated device", SUCCESS; }

int cuStreamCreate(void **stream, unsigned) {
    if (current < 0) die("a stream without a device");
    Stream *made = new Stream(current);
    std::lock_guard<std::mutex> lock(streams_mutex);
    streams.push_back(made);
    return *stream = made, SUCCESS;
}
int cuStreamDestroy_v2(void *handle) {
    Stream *stream = of(handle);
    {
        std::lock_guard<std::mutex> lock(streams_mutex);
        streams.erase(std::find(streams.begin(), streams.end(), stream));
    }
    stream->end();
    delete stream;
    return SUCCESS;
}
int cuStreamSynchronize(void *stream) { return of(stream)->drain(), SUCCESS; }
int cuStreamWaitEvent(void *stream, Event *event, unsigned) {
    if (auto flag = event->last()) of(stream)->push([flag] { flag->wait(); });
    return SUCCESS;
}

int cuLaunchHostFunc(void *stream, void (*work)(void *), void *data) { return of(stream)->push([=] { work(data); }), SUCCESS; }

int cuEventCreate(Event **event, unsigned) {
    if (current < 0) die("an event without a device");
    return *event = new Event(current), SUCCESS;
}
int cuEventDestroy_v2(Event *event) { return delete event, SUCCESS; }
int cuEventRecord(Event *event, void *stream) {
    if (of(stream)->device != event->device) return INVALID_HANDLE;
    auto flag = event->renew();
    of(stream)->push([flag] { flag->raise(); });
    return SUCCESS;
}
int cuEventSynchronize(Event *event) {
    if (auto flag = event->last()) flag->wait();
    return SUCCESS;
}
int cuEventElapsedTime(float *milliseconds, Event *from, Event *to) {
    auto begin = from->last(), end = to->last();
    if (!begin || !end || !end->is_up()) return NOT_READY;
    return *milliseconds = std::chrono::duration<float, std::milli>(end->at - begin->at).count(), SUCCESS;
}
int cuEventQuery(Event *event) {
    auto flag = event->last();
    return !flag || flag->is_up() ? SUCCESS : NOT_READY;
}

int cuMemAllocAsync(size_t *address, size_t bytes, void *stream) {
    if (bytes == 0) return INVALID_VALUE;
    int device = of(stream)->device;
    return has_room(bytes, device) ? (*address = (size_t)obtain(bytes, device), SUCCESS) : OUT_OF_MEMORY;
}
int cuMemFreeAsync(size_t address, void *stream) {
    of(stream)->push([address] { release(address); });
    return SUCCESS;
}
int cuMemHostAlloc(void **address, size_t bytes, unsigned) { return *address = obtain(bytes, -1), SUCCESS; }
int cuMemFreeHost(void *address) { return release((size_t)address), SUCCESS; }

int cuMemcpyHtoDAsync_v2(size_t to, const void *from, size_t bytes, void *handle) {
    Stream *stream = of(handle);
    must_be_on(stream->device, (void *)to, bytes);
    if (device_of(from, bytes) == -1) {
        stream->push([=] { memcpy((void *)to, from, bytes); });
        return SUCCESS;
    }
    auto copy = std::make_shared<std::vector<unsigned char>>((const unsigned char *)from, (const unsigned char *)from + bytes);
    stream->push([=] { memcpy((void *)to, copy->data(), bytes); });
    return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, size_t from, size_t bytes, void *handle) {
    Stream *stream = of(handle);
    must_be_on(stream->device, (void *)from, bytes);
    stream->push([=] { memcpy(to, (void *)from, bytes); });
    if (device_of(to, bytes) != -1) stream->drain();
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(size_t to, size_t from, size_t bytes, void *handle) {
    Stream *stream = of(handle);
    must_be_on(stream->device, (void *)to, bytes);
    must_be_on(stream->device, (void *)from, bytes);
    stream->push([=] { memmove((void *)to, (void *)from, bytes); });
    return SUCCESS;
}
int cuMemcpyPeerAsync(size_t to, void *there, size_t from, void *here, size_t bytes, void *handle) {
    must_be_on((int)(size_t)there - 1, (void *)to, bytes);
    must_be_on((int)(size_t)here - 1, (void *)from, bytes);
    of(handle)->push([=] { memcpy((void *)to, (void *)from, bytes); });
    return SUCCESS;
}
int cuMemsetD8Async(size_t to, unsigned char value, size_t bytes, void *handle) {
    Stream *stream = of(handle);
    must_be_on(stream->device, (void *)to, bytes);
    stream->push([=] { memset((void *)to, value, bytes); });
    return SUCCESS;
}

int cuModuleLoadData(void **module, const void *image) {
    return memcmp(image, IMAGE, sizeof IMAGE) ? INVALID_VALUE : (*module = (void *)IMAGE, SUCCESS);
}
int cuModuleUnload(void *) { return SUCCESS; }
int cuModuleGetFunction(const Kernel **function, void *, const char *name) {
    auto found = kernels().find(name);
    return found == kernels().end() ? NOT_FOUND : (*function = &found->second, SUCCESS);
}
int cuLaunchKernel(const Kernel *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned,
                   void *handle, void **arguments, void **) {
    Stream *stream = of(handle);
    if (blocks == 0 || threads == 0 || y * z * ty * tz != 1) return INVALID_VALUE;
    auto work = (*function)(stream->device, arguments);
    stream->push([=] {
        // Threads come one after the other, so each is a block and a warp of its own.
        gridDim.x = blocks * threads, blockDim.x = 1;
        work();
    });
    return SUCCESS;
}

int nvrtcVersion(int *major, int *minor) { return *major = 0, *minor = 0, SUCCESS; }
int nvrtcCreateProgram(void **program, const char *, const char *, int, void *, void *) { return *program = (void *)IMAGE, SUCCESS; }
int nvrtcCompileProgram(void *, int, void *) { return SUCCESS; }
int nvrtcDestroyProgram(void **) { return SUCCESS; }
int nvrtcGetCUBINSize(void *, size_t *size) { return *size = sizeof IMAGE, SUCCESS; }
int nvrtcGetCUBIN(void *, char *image) { return memcpy(image, IMAGE, sizeof IMAGE), SUCCESS; }
}
