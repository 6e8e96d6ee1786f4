// As much of NCCL as this library calls, between the devices of driver.cpp: operations are functions on their streams, which wait
// for those of the other ranks, and for ever unless they are aborted.
#include <condition_variable>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "host.h"

namespace {

enum { SUCCESS = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { F16 = 6, F32 = 7, BF16 = 9 };
enum { SUM = 0, FIRST_OWN_SUM = 5 };

using Numbers = std::vector<float>;

// One operation of all ranks.
struct Meeting {
    std::vector<Numbers> given;
    size_t came = 0;
};

struct World {
    std::mutex mutex;
    std::condition_variable changed;
    size_t size = 0;
    std::map<int, int> devices; // by rank
    std::map<unsigned long, Meeting> meetings;
    std::map<std::pair<int, int>, std::deque<Numbers>> mail;
};

struct Comm {
    std::shared_ptr<World> world;
    int rank;
    bool aborted = false;
    unsigned long next = 0;
    std::map<int, float> sums;
};

struct Id {
    char bytes[128];
};

struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
thread_local std::vector<std::function<void()>> pending;

template <class Function> Function driver(const char *name) {
    static void *library = dlopen("libcuda.so", RTLD_NOW);
    return (Function)dlsym(library, name);
}

template <class T> Numbers widened(const void *x, size_t count) {
    Numbers all(count);
    for (size_t i = 0; i < count; i++) all[i] = widen(((const T *)x)[i]);
    return all;
}
template <class T> void narrowed(const Numbers &x, void *out) {
    for (size_t i = 0; i < x.size(); i++) narrow(x[i], ((T *)out)[i]);
}
Numbers read(const void *x, size_t count, int type) {
    return type == F32 ? widened<float>(x, count) : type == F16 ? widened<f16>(x, count) : widened<bf16>(x, count);
}
void write(const Numbers &x, void *out, int type) {
    type == F32 ? narrowed<float>(x, out) : type == F16 ? narrowed<f16>(x, out) : narrowed<bf16>(x, out);
}

// Does something on a stream, once the group is ended.
void on_stream(void *stream, std::function<void()> work) {
    pending.push_back([=] {
        auto *owned = new std::function<void()>(work);
        auto call = [](void *work) {
            auto *owned = (std::function<void()> *)work;
            (*owned)();
            delete owned;
        };
        driver<int (*)(void *, void (*)(void *), void *)>("cuLaunchHostFunc")(stream, call, owned);
    });
}

// All ranks give their numbers; who `receives` has the sum afterwards.
int meet(const void *in, void *out, size_t count, int type, float weight, bool receives, Comm *comm, void *stream) {
    unsigned long number = comm->next++;
    auto world = comm->world;
    on_stream(stream, [=] {
        Numbers own = read(in, count, type);
        for (float &x : own) x *= weight;
        std::unique_lock<std::mutex> lock(world->mutex);
        Meeting &meeting = world->meetings[number];
        meeting.given.resize(world->size);
        meeting.given[comm->rank] = own;
        meeting.came++;
        world->changed.notify_all();
        world->changed.wait(lock, [&] { return comm->aborted || meeting.came == world->size; });
        if (comm->aborted || !receives) return;
        Numbers sum(count, 0.0f);
        for (const Numbers &given : meeting.given)
            for (size_t i = 0; i < count; i++) sum[i] += given[i];
        write(sum, out, type);
    });
    return SUCCESS;
}

} // namespace

extern "C" {

int ncclGetVersion(int *version) { return *version = 22907, SUCCESS; }
int ncclGetUniqueId(Id *id) {
    static std::random_device random;
    for (char &byte : id->bytes) byte = (char)random();
    return SUCCESS;
}
const char *ncclGetErrorString(int code) { return code == IN_PROGRESS ? "in progress" : "refused by the emulated library"; }
const char *ncclGetLastError(void *) { return ""; }

int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, Config *config) {
    if (config->magic != 0xcafebeef || config->blocking != 0 || rank >= size) return INVALID_ARGUMENT;
    void *context = nullptr;
    driver<int (*)(void **)>("cuCtxGetCurrent")(&context);
    if (!context) return INVALID_USAGE;
    std::shared_ptr<World> world;
    {
        std::lock_guard<std::mutex> lock(worlds_mutex);
        auto &known = worlds[std::string(id.bytes, sizeof id.bytes)];
        if (!known) known = std::make_shared<World>();
        world = known;
    }
    std::lock_guard<std::mutex> lock(world->mutex);
    int device = (int)(size_t)context;
    for (auto &other : world->devices)
        if (other.second == device || other.first == rank) return INVALID_USAGE;
    world->size = size;
    world->devices[rank] = device;
    *comm = new Comm{world, rank};
    return IN_PROGRESS;
}
int ncclCommGetAsyncError(Comm *comm, int *state) {
    std::lock_guard<std::mutex> lock(comm->world->mutex);
    return *state = comm->world->devices.size() == comm->world->size ? SUCCESS : IN_PROGRESS, SUCCESS;
}
// Who waits in an operation goes on, and looks at the communicator once more: it is not freed.
int ncclCommAbort(Comm *comm) {
    std::lock_guard<std::mutex> lock(comm->world->mutex);
    comm->aborted = true;
    comm->world->changed.notify_all();
    return SUCCESS;
}
int ncclGroupStart() { return SUCCESS; }
int ncclGroupEnd() {
    auto all = std::move(pending);
    pending.clear();
    for (auto &work : all) work();
    return SUCCESS;
}

int ncclReduce(const void *in, void *out, size_t count, int type, int operation, int root, Comm *comm, void *stream) {
    return operation == SUM ? meet(in, out, count, type, 1.0f, comm->rank == root, comm, stream) : INVALID_ARGUMENT;
}
int ncclAllReduce(const void *in, void *out, size_t count, int type, int operation, Comm *comm, void *stream) {
    auto own = comm->sums.find(operation);
    if (operation != SUM && own == comm->sums.end()) return INVALID_ARGUMENT;
    return meet(in, out, count, type, operation == SUM ? 1.0f : own->second, true, comm, stream);
}
int ncclSend(const void *x, size_t count, int type, int peer, Comm *comm, void *stream) {
    auto world = comm->world;
    on_stream(stream, [=] {
        Numbers numbers = read(x, count, type);
        std::lock_guard<std::mutex> lock(world->mutex);
        world->mail[{comm->rank, peer}].push_back(numbers);
        world->changed.notify_all();
    });
    return SUCCESS;
}
int ncclRecv(void *x, size_t, int type, int peer, Comm *comm, void *stream) {
    auto world = comm->world;
    on_stream(stream, [=] {
        std::unique_lock<std::mutex> lock(world->mutex);
        auto &mail = world->mail[{peer, comm->rank}];
        world->changed.wait(lock, [&] { return comm->aborted || !mail.empty(); });
        if (comm->aborted) return;
        write(mail.front(), x, type);
        mail.pop_front();
    });
    return SUCCESS;
}
int ncclRedOpCreatePreMulSum(int *operation, const void *scalar, int type, int, Comm *comm) {
    *operation = FIRST_OWN_SUM + (int)comm->sums.size();
    return comm->sums[*operation] = read(scalar, 1, type)[0], SUCCESS;
}
int ncclRedOpDestroy(int operation, Comm *comm) { return comm->sums.count(operation) ? SUCCESS : INVALID_ARGUMENT; }
}
