// When an emulated device does its work, and the memory that it does it on. Nothing here knows
// PyTorch.
//
// Whatever is issued to a stream is put off. It runs on the device's own thread, in one of the
// orders that streams and events allow, and by default as late as they allow: when the host waits
// for it.
#pragma once

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fake {

constexpr size_t kPage = 4096;
// What is in memory that nobody has written: NaN as a float of any format, -1 as a whole number.
constexpr int kPoison = 0xff;

inline size_t in_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

using Lock = std::unique_lock<std::mutex>;

// Memory that is mapped twice: the host knows an address in one mapping, which may be closed to it;
// the device works on the other.
class Arena {
 public:
  Arena(const char* name, size_t size, int protection) : size_(size) {
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, size) != 0)
      throw std::runtime_error("no memory for the emulated device");
    front_ = map(file, protection);
    back_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }
  bool has(const void* p) const { return p >= front_ && p < front_ + size_; }
  char* behind(const void* p) const { return back_ + (static_cast<const char*>(p) - front_); }
  // Memory that nobody had before; none where there is none.
  char* take(size_t bytes) {
    if (top_ + bytes > size_) return nullptr;
    char* found = front_ + top_;
    top_ += bytes;
    return found;
  }

 private:
  char* map(int file, int protection) {
    void* found = mmap(nullptr, size_, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (found == MAP_FAILED) throw std::runtime_error("no addresses for the emulated device");
    return static_cast<char*>(found);
  }
  char* front_;
  char* back_;
  size_t size_, top_ = 0;
};

// Memory that the host has by itself and the device has page-locked. What it has of whole pages is
// mapped a second time. Pages of which it has a part are others' too, and stay as they are: there
// the device works by the host's addresses.
struct Locked {
  char *from, *to;  // all of it
  char *first, *last;  // its whole pages
  char* back = nullptr;  // those as the device reaches them
  std::map<int, uint64_t> used;  // up to where streams have copies from or to it

  Locked(char* p, size_t bytes) : from(p), to(p + bytes) {
    auto address = reinterpret_cast<uintptr_t>(p);
    first = p + (in_pages(address) - address);
    last = to - (address + bytes) % kPage;
    if (first >= last) first = last = from;
    if (!pages()) return;
    int file = memfd_create("fake-locked", MFD_CLOEXEC);
    // Where no memory is, writing it to a file fails; copying it would end the process.
    char* next = first;
    for (ssize_t more = 1; next < last && more > 0; next += more)
      more = std::max<ssize_t>(write(file, next, static_cast<size_t>(last - next)), 0);
    // Threads that read it find the old pages or the new ones, never none.
    void* found = next < last ? MAP_FAILED : map(nullptr, MAP_SHARED, file);
    if (found != MAP_FAILED) back = static_cast<char*>(found);
    if (back) found = map(first, MAP_SHARED | MAP_FIXED, file);
    close(file);
    if (found == MAP_FAILED) throw std::runtime_error("memory that cannot be page-locked");
  }
  // Makes it the host's alone again. It is moved there at once, for threads that read it.
  void unlock() {
    if (!pages()) return;
    void* fresh = map(nullptr, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (fresh != MAP_FAILED) {
      memcpy(fresh, back, pages());
      fresh = mremap(fresh, pages(), pages(), MREMAP_MAYMOVE | MREMAP_FIXED, first);
    }
    if (fresh == MAP_FAILED) throw std::runtime_error("no memory for what was page-locked");
    munmap(back, pages());
  }
  // The device reads or writes some of it.
  void copy(char* p, char* other, size_t bytes, bool writes) const {
    for (char* end = p + bytes; p < end;) {
      bool whole = p >= first && p < last;
      char* here = whole ? back + (p - first) : p;
      auto part = static_cast<size_t>(std::min(end, p < first ? first : whole ? last : to) - p);
      memcpy(writes ? here : other, writes ? other : here, part);
      p += part;
      other += part;
    }
  }

 private:
  size_t pages() const { return static_cast<size_t>(last - first); }
  void* map(char* where, int flags, int file) const {
    return mmap(where, pages(), PROT_READ | PROT_WRITE, flags, file, 0);
  }
};

// Up to where a stream's work is meant.
struct Mark {
  int stream = 0;
  uint64_t upto = 0;
};

struct Event {
  Mark mark;
  bool recorded = false;
  // How often the host has asked for it in vain.
  int asked = 0;
  // When the device came to it, in milliseconds, of one that is to tell.
  std::shared_ptr<double> came;
};

// The device's memory is at an end.
struct OutOfMemory : std::runtime_error {
  OutOfMemory() : std::runtime_error("the emulated device is out of memory") {}
};

// Pages of page-locked memory that copies are on their way from or to: the host may not touch what
// the device is to write, nor write what it is to read.
class Guarded {
 public:
  void add(char* from, char* to, bool writes, int by) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (char* page = from; page < to; page += kPage) {
      auto& [writers, readers] = pages_[page];
      (writes ? writers : readers) += by;
      int protection = writers ? PROT_NONE : readers ? PROT_READ : PROT_READ | PROT_WRITE;
      if (!writers && !readers) pages_.erase(page);
      mprotect(page, kPage, protection);
    }
  }

 private:
  std::mutex mutex_;
  std::map<char*, std::pair<int, int>> pages_;
};

struct Block {
  int stream;       // that it was made for
  size_t bytes;     // that were asked for
  std::set<int> used;  // other streams that were said to use it
};

struct Counts {
  int64_t late = 0, at_once = 0, copies = 0;
};

class Device {
 public:
  static Device& get() {
    static Device* device = new Device();
    return *device;
  }

  // Puts work on a stream.
  void issue(int stream, std::function<void()> run) {
    Lock lock(mutex_);
    push(stream, Work{std::move(run), {}, false, false}, lock);
  }
  void wait_event(int stream, const Event& event) {
    Lock lock(mutex_);
    if (event.recorded) push(stream, Work{{}, event.mark, true, false}, lock);
  }
  void record(Event& event, int stream, bool timed) {
    Lock lock(mutex_);
    std::shared_ptr<double> came;
    if (timed) {
      came = std::make_shared<double>(0);
      push(stream, Work{[came] { *came = milliseconds(); }, {}, false, false}, lock);
    }
    event = Event{{stream, at(stream).issued}, true, 0, came};
  }
  double between(const Event& before, const Event& after) {
    Lock lock(mutex_);
    for (const Event* event : {&before, &after})
      if (!event->came || at(event->mark.stream).done < event->mark.upto)
        throw std::runtime_error("the time of an event is asked for that has not come");
    return *after.came - *before.came;
  }
  // The host waits. `counts` says whether one would wait on a device that is real, too.
  void wait(Mark mark, bool counts = true) {
    Lock lock(mutex_);
    await(mark, counts, lock);
    raise(lock);
  }
  void wait(const Event& event) {
    if (event.recorded) wait(event.mark);
  }
  void wait_stream(int stream, bool counts = true) { wait(all(stream), counts); }
  void wait_device() {
    for (int stream = 0; stream < streams(); ++stream) wait_stream(stream);
  }
  // Whether an event has come. Who asks again and again is told so in the end, and has waited.
  bool query(Event& event) {
    Lock lock(mutex_);
    if (!event.recorded || at(event.mark.stream).done >= event.mark.upto) return raise(lock), true;
    if (++event.asked < 3) return false;
    demand(event.mark);
    auto done = [&] { return at(event.mark.stream).done >= event.mark.upto; };
    changed_.wait(lock, [&] { return done() || hangs_; });
    if (!done()) return false;
    ++waits();
    raise(lock);
    return true;
  }
  bool query_stream(int stream) {
    Lock lock(mutex_);
    return at(stream).done >= at(stream).issued;
  }
  int new_stream() {
    Lock lock(mutex_);
    streams_.emplace_back();
    return static_cast<int>(streams_.size()) - 1;
  }
  int streams() {
    Lock lock(mutex_);
    return static_cast<int>(streams_.size());
  }

  // A kernel that does not end before `release`.
  void hang(int stream) {
    issue(stream, [this] {
      Lock lock(mutex_);
      hangs_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !hangs_; });
    });
  }
  void release() {
    Lock lock(mutex_);
    hangs_ = false;
    changed_.notify_all();
  }

  // Memory of the device, for a stream. What it holds is poison by the time that stream uses it.
  char* allocate(int stream, size_t bytes) {
    Lock lock(mutex_);
    take_back(held_, spare_);
    char* found = nullptr;
    bool refused = refuse_ && bytes >= refuse_least_ && --refuse_ == 0;
    if (!refused && in_use_ + in_pages(bytes) <= memory_limit_) {
      found = from_spare(spare_, {stream, in_pages(bytes)});
      if (!found) found = memory_.take(in_pages(bytes));
    }
    if (!found) throw OutOfMemory();
    blocks_[found] = Block{stream, bytes, {}};
    use(in_use_, peak_, in_pages(bytes));
    poison(stream, found, bytes, lock);
    return found;
  }
  // What is freed is at once its stream's again, and poison in that stream's order. It is kept from
  // it only while streams that were said to use it do.
  void free(char* p) {
    Lock lock(mutex_);
    Block block = std::move(blocks_.at(p));
    blocks_.erase(p);
    in_use_ -= in_pages(block.bytes);
    block.used.erase(block.stream);
    if (block.used.empty()) {
      spare_[{block.stream, in_pages(block.bytes)}].push_back(p);
      poison(block.stream, p, block.bytes, lock);
      return;
    }
    std::vector<Mark> until;
    for (int stream : block.used) until.push_back({stream, at(stream).issued});
    held_.push_back({p, {block.stream, in_pages(block.bytes)}, until});
  }
  void used_by(const void* p, int stream) {
    Lock lock(mutex_);
    auto found = blocks_.find(static_cast<char*>(const_cast<void*>(p)));
    if (found != blocks_.end()) found->second.used.insert(stream);
  }

  // Page-locked memory of the host.
  char* pin(size_t bytes) {
    Lock lock(mutex_);
    take_back(held_pins_, spare_pins_);
    size_t size = in_pages(bytes ? bytes : 1);
    char* found = nullptr;
    if (pinned_in_use_ + size <= pinned_limit_) {
      found = from_spare(spare_pins_, {0, size});
      if (!found) found = pinned_.take(size);
    }
    if (!found)
      throw std::runtime_error(
          "the emulated device refuses to page-lock " + std::to_string(bytes) + " bytes");
    pins_[found] = Block{0, bytes, {}};
    use(pinned_in_use_, pinned_peak_, size);
    memset(pinned_.behind(found), kPoison, size);
    return found;
  }
  // It is kept until whatever is on its way now is over, as PyTorch's own allocator does.
  void unpin(char* p) {
    Lock lock(mutex_);
    size_t size = in_pages(pins_.at(p).bytes ? pins_.at(p).bytes : 1);
    pins_.erase(p);
    pinned_in_use_ -= size;
    std::vector<Mark> until;
    for (size_t stream = 0; stream < streams_.size(); ++stream)
      until.push_back({static_cast<int>(stream), streams_[stream].issued});
    held_pins_.push_back({p, {0, size}, until});
  }
  // Page-locks memory that the host has by itself; false where there is no more to be had.
  bool page_lock(char* p, size_t bytes) {
    Lock lock(mutex_);
    if (touched(p, bytes) || pinned_.has(p))
      throw std::runtime_error("memory is to be page-locked that is page-locked already");
    if (pinned_in_use_ + in_pages(bytes) > pinned_limit_) return false;
    locked_.emplace(p, Locked(p, bytes));
    use(pinned_in_use_, pinned_peak_, in_pages(bytes));
    return true;
  }
  // What has failed meanwhile is told the next who waits: this is to end as it must.
  void page_unlock(char* p) {
    Lock lock(mutex_);
    auto found = locked_.find(p);
    if (found == locked_.end())
      throw std::runtime_error("memory is to be unlocked that is not page-locked");
    auto used = found->second.used;
    for (auto [stream, upto] : used) await({stream, upto}, true, lock);
    found->second.unlock();
    pinned_in_use_ -= in_pages(static_cast<size_t>(found->second.to - p));
    locked_.erase(found);
  }
  int64_t locks() {
    Lock lock(mutex_);
    return static_cast<int64_t>(locked_.size());
  }
  // The page-locked memory of the host's own that a copy takes, if it does. As in CUDA, a copy may
  // not take memory of which a part is page-locked.
  std::optional<Locked> locked(const char* p, size_t bytes) {
    Lock lock(mutex_);
    Locked* found = touched(p, bytes);
    if (!found) return std::nullopt;
    if (p < found->from || p + bytes > found->to)
      throw std::runtime_error("a copy from or to memory of which a part is page-locked");
    return *found;
  }
  bool is_pinned(const void* p) {
    Lock lock(mutex_);
    return pinned_.has(p) || touched(static_cast<const char*>(p), 1);
  }
  char* behind(const void* p) const { return (pinned_.has(p) ? pinned_ : memory_).behind(p); }

  // Puts a copy on a stream that reads (or writes) page-locked memory, which is closed until then.
  void issue_copy(int stream, char* host, size_t bytes, bool writes, std::function<void()> run) {
    Lock lock(mutex_);
    auto [from, to] = whole_pages(host, bytes);
    guarded_.add(from, to, writes, 1);
    if (Locked* found = touched(host, 1)) found->used[stream] = at(stream).issued + 1;
    auto copy = [this, from = from, to = to, writes, run = std::move(run)] {
      run();
      guarded_.add(from, to, writes, -1);
    };
    push(stream, Work{std::move(copy), {}, false, false}, lock);
  }

  // Takes effect for what is issued from now on; what is under way ends before.
  void settings(const std::string& policy, uint64_t seed, bool protect) {
    for (int stream = 0; stream < streams(); ++stream) wait_stream(stream, false);
    Lock lock(mutex_);
    if (policy != "lazy" && policy != "hasty" && policy != "random" && policy != "eager")
      throw std::runtime_error("no policy of the emulated device: " + policy);
    policy_ = policy;
    dice_.seed(seed);
    protect_ = protect;
  }
  void limits(size_t memory, size_t pinned) {
    Lock lock(mutex_);
    memory_limit_ = memory;
    pinned_limit_ = pinned;
  }
  // The nth allocation from now that has `least` bytes fails; none does where n is 0.
  void refuse(int64_t nth, size_t least) {
    Lock lock(mutex_);
    refuse_ = nth;
    refuse_least_ = least;
  }
  // Bytes of the device and of page-locked memory: in use, and at most since it was asked last.
  std::vector<int64_t> memory() {
    Lock lock(mutex_);
    std::vector<int64_t> found = {
        int64_t(in_use_), int64_t(peak_), int64_t(pinned_in_use_), int64_t(pinned_peak_)};
    peak_ = in_use_;
    pinned_peak_ = pinned_in_use_;
    return found;
  }
  // How often this thread of the host has waited for the device.
  static int64_t& waits() {
    thread_local int64_t count = 0;
    return count;
  }
  void count(int64_t Counts::*what) {
    Lock lock(mutex_);
    ++(counts_.*what);
  }
  Counts counts() {
    Lock lock(mutex_);
    return counts_;
  }
  // Called on the device's thread before it does something.
  std::function<void()> prepare = [] {};

 private:
  static double milliseconds() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
  }
  // Something to run, or another stream's work to be waited for.
  struct Work {
    std::function<void()> run;
    Mark other;
    bool waits;
    // A device that is real has nothing to do here.
    bool is_poison;
  };
  struct Stream {
    std::deque<Work> queue;
    uint64_t issued = 0, done = 0;
  };
  using Place = std::pair<int, size_t>;
  struct Held {
    char* p;
    Place place;
    std::vector<Mark> until;
  };

  Device() {
    handle_faults();
    std::thread([this] { serve(); }).detach();
  }

  Stream& at(int stream) { return streams_.at(stream); }
  Mark all(int stream) {
    Lock lock(mutex_);
    return {stream, at(stream).issued};
  }
  void demand(Mark mark) {
    demanded_.push_back(mark);
    changed_.notify_all();
  }
  void push(int stream, Work work, Lock& lock) {
    at(stream).queue.push_back(std::move(work));
    ++at(stream).issued;
    if (policy_ == "eager") run_now({stream, at(stream).issued}, lock);
    if (policy_ == "random" && dice_() % 4 == 0) run_now(some(), lock);
  }
  // Some of some stream's work.
  Mark some() {
    std::vector<int> busy;
    for (int stream = 0; stream < static_cast<int>(streams_.size()); ++stream)
      if (at(stream).issued > at(stream).done) busy.push_back(stream);
    if (busy.empty()) return {};
    int stream = busy[dice_() % busy.size()];
    return {stream, at(stream).done + 1 + dice_() % (at(stream).issued - at(stream).done)};
  }
  void await(Mark mark, bool counts, Lock& lock) {
    auto done = [&] { return at(mark.stream).done >= mark.upto; };
    if (done()) return;
    waits() += counts && has_work(mark);
    demand(mark);
    changed_.wait(lock, done);
  }
  // The device does it before the host goes on, which did not wait for it.
  void run_now(Mark mark, Lock& lock) {
    demand(mark);
    changed_.wait(lock, [&] { return at(mark.stream).done >= mark.upto || hangs_; });
  }
  void serve() {
    Lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !demanded_.empty(); });
      Mark mark = demanded_.front();
      demanded_.pop_front();
      if (policy_ == "random")
        for (auto rolls = dice_() % 3; rolls > 0; --rolls) advance(some(), lock);
      if (policy_ == "hasty")
        for (int stream = 0; stream < static_cast<int>(streams_.size()); ++stream)
          if (stream != mark.stream) advance({stream, at(stream).issued}, lock);
      advance(mark, lock);
      changed_.notify_all();
    }
  }
  void advance(Mark mark, Lock& lock) {
    while (at(mark.stream).done < mark.upto) {
      Work work = std::move(at(mark.stream).queue.front());
      at(mark.stream).queue.pop_front();
      if (work.waits) {
        advance(work.other, lock);
      } else {
        lock.unlock();
        std::string trouble;
        try {
          prepare();
          work.run();
        } catch (const std::exception& error) {
          trouble = error.what();
        }
        work.run = {};
        lock.lock();
        if (failed_.empty()) failed_ = trouble;
      }
      ++at(mark.stream).done;
    }
  }
  // What has failed on the device is told whoever waits next.
  void raise(Lock& lock) {
    if (failed_.empty()) return;
    std::string what = std::move(failed_);
    failed_.clear();
    lock.unlock();
    throw std::runtime_error("the emulated device has failed: " + what);
  }

  // Whether something is left of a stream's work that a device that is real would do, too. Other
  // threads of the host may free memory at any time.
  bool has_work(Mark mark) {
    const Stream& of = at(mark.stream);
    uint64_t left = mark.upto - of.done, waiting = of.issued - of.done;
    // What is not in the queue any more is under way.
    if (waiting > of.queue.size()) return true;
    return std::any_of(of.queue.begin(), of.queue.begin() + static_cast<std::ptrdiff_t>(left),
                       [](const Work& work) { return !work.is_poison; });
  }
  void poison(int stream, char* p, size_t bytes, Lock& lock) {
    char* back = memory_.behind(p);
    push(stream, Work{[back, bytes] { memset(back, kPoison, bytes); }, {}, false, true}, lock);
  }
  static void use(size_t& now, size_t& peak, size_t bytes) {
    now += bytes;
    if (now > peak) peak = now;
  }
  static char* from_spare(std::map<Place, std::vector<char*>>& spare, Place place) {
    auto& found = spare[place];
    if (found.empty()) return nullptr;
    char* p = found.back();
    found.pop_back();
    return p;
  }
  void take_back(std::vector<Held>& held, std::map<Place, std::vector<char*>>& spare) {
    for (size_t i = held.size(); i-- > 0;) {
      bool over = true;
      for (Mark mark : held[i].until) over &= at(mark.stream).done >= mark.upto;
      if (!over) continue;
      spare[held[i].place].push_back(held[i].p);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  // The locked memory that some bytes lie in, even if only some of them do.
  Locked* touched(const char* p, size_t bytes) {
    auto found = locked_.lower_bound(p + bytes);
    if (found == locked_.begin() || (--found)->second.to <= p) return nullptr;
    return &found->second;
  }
  // The pages of which a copy takes all that is in use.
  std::pair<char*, char*> whole_pages(char* p, size_t bytes) {
    if (!protect_ || !bytes) return {p, p};
    if (Locked* found = touched(p, bytes)) {
      auto address = reinterpret_cast<uintptr_t>(p);
      char* from = std::max(p + (in_pages(address) - address), found->first);
      char* to = std::min(p + bytes - (address + bytes) % kPage, found->last);
      return {from, std::max(from, to)};
    }
    auto block = pins_.upper_bound(p);
    if (block == pins_.begin()) return {p, p};
    --block;
    char *end = p + bytes, *last = block->first + block->second.bytes;
    if (end >= last) end = block->first + in_pages(block->second.bytes);
    auto offset = [&](char* q) { return static_cast<size_t>(q - block->first); };
    char* from = block->first + in_pages(offset(p));
    char* to = block->first + offset(end) / kPage * kPage;
    return {from, to > from ? to : from};
  }

  // Says what an access that ends the process was.
  static void handle_faults() {
    struct sigaction action = {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      Device& device = get();
      const char* text = nullptr;
      // The device's lock may be taken: under it no memory is touched that may be closed.
      if (device.memory_.has(info->si_addr)) text = "the host touches memory of the device\n";
      if (device.is_pinned(info->si_addr))
        text = "the host touches page-locked memory while a copy from or to it is on its way\n";
      if (text && write(2, text, strlen(text)) < 0) _exit(1);
      sigaction(SIGSEGV, &before(), nullptr);
    };
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before());
  }
  static struct sigaction& before() {
    static struct sigaction found = {};
    return found;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Stream> streams_ = std::deque<Stream>(1);
  std::deque<Mark> demanded_;
  std::string failed_, policy_ = "lazy";
  bool protect_ = true, hangs_ = false;
  std::mt19937 dice_{0};
  Counts counts_;

  Arena memory_{"fake-device", size_t(4) << 30, PROT_NONE};
  Arena pinned_{"fake-pinned", size_t(2) << 30, PROT_READ | PROT_WRITE};
  std::map<char*, Block> blocks_, pins_;
  std::map<const char*, Locked> locked_;
  std::map<Place, std::vector<char*>> spare_, spare_pins_;
  std::vector<Held> held_, held_pins_;
  Guarded guarded_;
  size_t in_use_ = 0, peak_ = 0, pinned_in_use_ = 0, pinned_peak_ = 0;
  size_t memory_limit_ = SIZE_MAX, pinned_limit_ = SIZE_MAX, refuse_least_ = 0;
  int64_t refuse_ = 0;
};

}  // namespace fake
