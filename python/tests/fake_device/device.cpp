// The emulated device as PyTorch knows it, by PrivateUse1.
//
// An operation is put off: what it gives back has the shapes that the meta device says, and the
// CPU's kernel runs on the device's thread when its turn comes. So its numbers have the CPU's bits,
// and whoever does not wait for them finds poison, always and not by chance.
#include "schedule.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/Parallel.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace fake {
namespace {

using at::IValue;
using at::Tensor;
using Stack = torch::jit::Stack;
using Visit = std::function<Tensor(const Tensor&)>;
constexpr auto kFake = c10::DeviceType::PrivateUse1;
constexpr auto kKeys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);

thread_local int current_stream = 0;

Device& device() {
  static Device& found = []() -> Device& {
    Device& it = Device::get();
    it.prepare = [] {
      // Once for the device's thread, which is in no mode that a thread of the host may be in.
      thread_local at::AutoDispatchBelowADInplaceOrView below;
      thread_local at::NoGradGuard none;
      at::init_num_threads();
    };
    return it;
  }();
  return found;
}
void issue(std::function<void()> run) { device().issue(current_stream, std::move(run)); }
void drain(bool counts) { device().wait_stream(current_stream, counts); }

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    try {
      char* p = bytes ? device().allocate(current_stream, bytes) : nullptr;
      return {p, p, &release, c10::Device(kFake, 0)};
    } catch (const OutOfMemory& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
    }
  }
  static void release(void* p) {
    if (p) device().free(static_cast<char*>(p));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    char *a = device().behind(to), *b = device().behind(from);
    issue([a, b, bytes] { memcpy(a, b, bytes); });
  }
} allocator;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    char* p = device().pin(bytes);
    return {p, p, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* p) {
    if (p) device().unpin(static_cast<char*>(p));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memcpy(to, from, bytes);
  }
} pinned_allocator;

at::Generator& generator() {
  static at::Generator found = at::detail::createCPUGenerator();
  return found;
}

bool is_ours(const Tensor& t) { return t.defined() && t.device().type() == kFake; }

Tensor with_flag_of(const Tensor& t, Tensor seen) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    seen.unsafeGetTensorImpl()->set_wrapped_number(true);
  return seen;
}
// A tensor's memory as the device reaches it.
Tensor behind(const Tensor& t) {
  auto options = at::TensorOptions().dtype(t.dtype());
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), options);
  char* p = device().behind(t.const_data_ptr());
  return with_flag_of(t, at::from_blob(p, t.sizes(), t.strides(), options));
}
Tensor shape_of(const Tensor& t) {
  auto options = at::TensorOptions().dtype(t.dtype()).device(at::kMeta);
  return with_flag_of(t, at::empty_strided(t.sizes(), t.strides(), options));
}
Tensor made_like(const Tensor& t) {
  return at::detail::empty_strided_generic(
      t.sizes(), t.strides(), &allocator, kKeys, t.scalar_type());
}

IValue mapped(const IValue& value, const Visit& visit) {
  if (value.isTensor()) return visit(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(visit(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& t : value.toOptionalTensorVector())
      list.push_back(t ? std::optional<Tensor>(visit(*t)) : std::nullopt);
    return list;
  }
  return value;
}

// Puts numbers into tensors that were made for them.
void deliver(const Stack& from, const std::vector<std::pair<size_t, Tensor>>& targets) {
  size_t next = 0;
  for (size_t place = 0; place < from.size(); ++place)
    mapped(from[place], [&](const Tensor& t) {
      if (t.defined() && next < targets.size() && targets[next].first == place)
        Tensor(targets[next++].second).copy_(t);
      return t;
    });
}

// One operation that PyTorch asks the device for.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op), schema_(op.schema()), stack_(stack), count_(schema_.arguments().size()) {
    args_.assign(stack->end() - static_cast<std::ptrdiff_t>(count_), stack->end());
    size_t tensors = 0;
    for (auto& arg : args_)
      mapped(arg, [&](const Tensor& t) { return tensors += is_ours(t), t; });
    ours_ = tensors;
    seeded_ = op.hasTag(at::Tag::nondeterministic_seeded);
    // What is drawn into a tensor does not depend on what was in it.
    fills_ = seeded_ && tensors == 1 && writes(schema_.arguments()[0].alias_info());
    check_devices();
  }

  void run() {
    std::optional<Stack> shapes = predict();
    device().count(shapes || fills_ ? &Counts::late : &Counts::at_once);
    if (fills_) {
      fill();
    } else if (shapes) {
      later(*shapes);
    } else {
      now();
    }
    stack_->erase(stack_->end() - static_cast<std::ptrdiff_t>(count_), stack_->end());
    for (auto& value : given_) stack_->push_back(value);
  }

 private:
  static bool writes(const c10::AliasInfo* info) { return info && info->isWrite(); }

  // A number of the host may be among the tensors of the device, a tensor only where it says which
  // elements are meant.
  void check_devices() const {
    bool indices = schema_.name().find("index") != std::string::npos;
    for (auto& arg : args_)
      mapped(arg, [&](const Tensor& t) {
        TORCH_CHECK(!ours_ || !t.defined() || is_ours(t) || t.dim() == 0 || indices, schema_.name(),
                    ": a tensor is on ", t.device(), " where others are on the emulated device");
        return t;
      });
  }

  // The arguments as another device takes them.
  Stack arguments(const Visit& visit, c10::DeviceType type) const {
    Stack found;
    for (auto& arg : args_) {
      if (arg.isDevice() && arg.toDevice().type() == kFake) {
        found.push_back(c10::Device(type));
      } else if (seeded_ && arg.isNone() && is_generator(found.size())) {
        found.push_back(generator());
      } else {
        // What the host changes after the call does not count.
        found.push_back(mapped(arg, [&](const Tensor& t) {
          return is_ours(t) ? visit(t) : t.defined() ? with_flag_of(t, t.clone()) : t;
        }));
      }
    }
    return found;
  }
  bool is_generator(size_t place) const {
    auto optional = schema_.arguments()[place].type()->cast<c10::OptionalType>();
    return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }
  Stack on_device() const { return arguments(behind, c10::DeviceType::CPU); }

  // The shapes of what it gives back; none where only the numbers tell.
  std::optional<Stack> predict() {
    bool tensors = ours_ && !seeded_;
    for (auto& result : schema_.returns())
      tensors &= result.type()->isSubtypeOf(*c10::TensorType::get()) ||
          result.type()->isSubtypeOf(*c10::ListType::ofTensors());
    if (!tensors) return std::nullopt;
    try {
      Stack shapes = arguments(shape_of, c10::DeviceType::Meta);
      Stack before = shapes;
      op_.callBoxed(shapes);
      correct(shapes);
      for (size_t i = 0; i < count_; ++i) {  // out= of another shape
        if (!writes(schema_.arguments()[i].alias_info()) || !args_[i].isTensor()) continue;
        auto sizes = before[i].toTensor().sizes();
        Tensor out = args_[i].toTensor();
        if (is_ours(out) && out.sizes() != sizes) out.resize_(sizes);
      }
      return shapes;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error&) {
      return std::nullopt;
    }
  }
  // The statistics of norms have another format on the CPU than on the meta device.
  void correct(Stack& shapes) const {
    bool layers = schema_.name() == "aten::native_layer_norm";
    if (!layers && schema_.name() != "aten::native_group_norm") return;
    Tensor input = args_[0].toTensor();
    auto weight = args_[layers ? 2 : 1].toOptional<Tensor>();
    auto type = weight && weight->defined() ? weight->scalar_type() : input.scalar_type();
    for (size_t place : {1, 2}) shapes[place] = shapes[place].toTensor().to(type);
  }

  // What is given back: arguments that were written, or tensors that are made for it.
  void give(const Stack& found) {
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      auto* info = schema_.returns()[i].alias_info();
      TORCH_CHECK(!info || info->isWrite(), schema_.name(), " gives a view, which is not emulated");
      if (!info) {
        given_.push_back(mapped(found[i], [&](const Tensor& t) {
          if (!t.defined()) return t;
          Tensor made = made_like(t);
          targets_.emplace_back(i, behind(made));
          return made;
        }));
        continue;
      }
      for (size_t k = 0; k < count_; ++k) {
        auto* other = schema_.arguments()[k].alias_info();
        if (writes(other) && *other == *info) given_.push_back(args_[k]);
      }
    }
  }
  void later(const Stack& shapes) {
    give(shapes);
    issue([op = op_, cpu = on_device(), targets = targets_]() mutable {
      op.callBoxed(cpu);
      deliver(cpu, targets);
    });
  }
  void now() {
    drain(!seeded_);
    Stack results = on_device();
    op_.callBoxed(results);
    give(results);
    if (!targets_.empty()) issue([results, targets = targets_] { deliver(results, targets); });
  }
  // Numbers are drawn in the host's order, and written in the stream's.
  void fill() {
    Tensor target = behind(args_[0].toTensor());
    auto scratch = [](const Tensor& t) {
      return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
    };
    Stack drawn = arguments(scratch, c10::DeviceType::CPU);
    Tensor numbers = drawn[0].toTensor();
    op_.callBoxed(drawn);
    issue([target, numbers]() mutable { target.copy_(numbers); });
    give(drawn);
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  size_t count_;
  Stack args_, given_;
  std::vector<std::pair<size_t, Tensor>> targets_;
  bool ours_ = false, seeded_ = false, fills_ = false;
};

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Call(op, stack).run();
}

using Type = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Where = std::optional<at::Device>;
using Format = std::optional<at::MemoryFormat>;
Tensor empty(c10::IntArrayRef size, Type type, Layout, Where, std::optional<bool>, Format format) {
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(type), format);
}
Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Type type, Layout, Where,
                     std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &allocator, kKeys, c10::dtype_or_default(type));
}

// Between the device and page-locked memory a copy is late where it may be. Pageable memory is read
// and written before the call comes back. So is a tensor with gaps in memory of the host's own that
// is page-locked: others may write into the gaps.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  device().count(&Counts::copies);
  if (from.numel() == 0) return to;
  bool out = !is_ours(to), in = !is_ours(from);
  if (!out && !in) {
    issue([a = behind(from), b = behind(to)]() mutable { b.copy_(a); });
    return to;
  }
  const Tensor& host = out ? to : from;
  auto* p = static_cast<char*>(const_cast<void*>(host.const_data_ptr()));
  size_t bytes = host.is_contiguous() ? host.nbytes() : 0;
  auto locked = device().locked(
      p, at::detail::computeStorageNbytes(host.sizes(), host.strides(), host.itemsize()));
  if (locked ? !bytes : !device().is_pinned(p)) {
    at::AutoDispatchBelowADInplaceOrView below;
    if (out || locked) drain(true);
    if (out) {
      Tensor(to).copy_(behind(from));
    } else {
      issue([a = from.clone(), b = behind(to)]() mutable { b.copy_(a); });
    }
    return to;
  }
  std::function<void()> run;
  if (locked) {
    // There is no one mapping behind all of it: its bytes go by way of a tensor of their own.
    Tensor between = at::empty(host.sizes(), at::TensorOptions().dtype(host.dtype()));
    run = [=, ours = behind(out ? from : to)]() mutable {
      if (out) between.copy_(ours);
      locked->copy(p, static_cast<char*>(between.mutable_data_ptr()), bytes, out);
      if (in) ours.copy_(between);
    };
  } else {
    run = [a = behind(from), b = behind(to)]() mutable { b.copy_(a); };
  }
  device().issue_copy(current_stream, p, bytes, out, std::move(run));
  if (!non_blocking) drain(true);
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar(const Tensor& t) {
  drain(true);
  return behind(t).item();
}
const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, Format) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  size_t needed = static_cast<size_t>(self.storage_offset() + self.numel()) * self.itemsize();
  c10::Storage storage = self.storage();
  if (needed > storage.nbytes()) {
    auto fresh = allocator.allocate(needed);
    if (storage.nbytes()) allocator.copy_data(fresh.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(needed);
  }
  return self;
}
Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  auto result = at::detail::make_tensor<at::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  at::native::setStrided(result, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                         offset ? offset->expect_int() : self.storage_offset());
  return result;
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return as_strided(self, size, stride, std::nullopt);
}
Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  auto sizes = at::infer_size_dv(C10_AS_INTARRAYREF_SLOW(size), self.numel());
  auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
  TORCH_CHECK(strides.has_value(), "a view of this size does not fit the strides: use reshape");
  return as_strided(
      self, c10::fromIntArrayRefSlow(sizes), c10::fromIntArrayRefSlow(*strides), std::nullopt);
}
Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  at::native::setStrided(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                         offset.expect_int());
  return self;
}
Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  c10::SymInt size(static_cast<int64_t>(source.nbytes() / self.itemsize())), one(1);
  return set_storage(self, std::move(source), 0, {&size, 1}, {&one, 1});
}
void record_stream(Tensor& self, at::Stream stream) {
  device().used_by(self.storage().data(), static_cast<int>(stream.id()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize_);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view", view);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("record_stream", record_stream);
  // They have kernels on the CPU, and composites with other bits that would be taken instead.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
// As on the CPU: for other devices PyTorch takes a kernel that rounds otherwise.
Tensor dropout(const Tensor& input, double p, bool train) {
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  return input * at::empty_like(input).bernoulli_(1 - p).div_(1 - p);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("dropout", dropout); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(int id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kFake, 0), id);
  }
  static int id(const c10::Stream& stream) { return static_cast<int>(stream.id()); }
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device) const override { return {kFake, 0}; }
  c10::Device getDevice() const override { return {kFake, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream(device().new_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(device().new_stream());
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, id(next)));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (!*event) *event = new Event();
    bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    device().record(*static_cast<Event*>(*event), id(on), timed);
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event) device().wait_event(id(on), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return !event || device().query(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event) device().wait(*static_cast<Event*>(event));
  }
  bool queryStream(const c10::Stream& on) const override {
    return device().query_stream(id(on));
  }
  void synchronizeStream(const c10::Stream& on) const override { device().wait_stream(id(on)); }
  void synchronizeDevice(const c10::DeviceIndex) const override { device().wait_device(); }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& on) const override {
    device().used_by(p.get(), id(on));
  }
  double elapsedTime(void* before, void* after, const c10::DeviceIndex) const override {
    return device().between(*static_cast<Event*>(before), *static_cast<Event*>(after));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
REGISTER_ALLOCATOR(kFake, &allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  at::Device getDeviceFromPtr(void*) const override { return {kFake, 0}; }
  bool isPinnedPtr(const void* p) const override { return device().is_pinned(p); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage&, size_t) const override {
    TORCH_CHECK(false, "storages of the emulated device are not resized");
  }
} hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

TORCH_LIBRARY(fake, m) {
  m.def("settings(str policy, int seed, bool protect) -> ()",
        [](std::string policy, int64_t seed, bool protect) {
          device().settings(policy, static_cast<uint64_t>(seed), protect);
        });
  m.def("limits(int memory, int pinned) -> ()", [](int64_t memory, int64_t pinned) {
    device().limits(static_cast<size_t>(memory), static_cast<size_t>(pinned));
  });
  m.def("refuse(int nth, int least) -> ()", [](int64_t nth, int64_t least) {
    device().refuse(nth, static_cast<size_t>(least));
  });
  m.def("page_lock(int address, int bytes) -> bool", [](int64_t address, int64_t bytes) {
    TORCH_CHECK(bytes > 0, "no bytes are to be page-locked");
    // To PyTorch nothing is pinned before it has used the device.
    at::globalContext().lazyInitDevice(kFake);
    return device().page_lock(reinterpret_cast<char*>(address), static_cast<size_t>(bytes));
  });
  m.def("page_unlock(int address) -> ()", [](int64_t address) {
    device().page_unlock(reinterpret_cast<char*>(address));
  });
  m.def("locked() -> int", [] { return device().locks(); });
  m.def("counts() -> int[]", []() -> std::vector<int64_t> {
    Counts found = device().counts();
    return {found.late, found.at_once, found.copies, Device::waits()};
  });
  m.def("memory() -> int[]", [] { return device().memory(); });
  m.def("fail(str what) -> ()", [](std::string what) {
    issue([what] { throw std::runtime_error(what); });
  });
  m.def("hang() -> ()", [] { device().hang(current_stream); });
  m.def("release() -> ()", [] { device().release(); });
  m.def("seed(int seed) -> ()", [](int64_t seed) {
    std::lock_guard<std::mutex> lock(generator().mutex());
    generator().set_current_seed(static_cast<uint64_t>(seed));
  });
  m.def("random_state() -> Tensor", [] { return generator().get_state(); });
  m.def("set_random_state(Tensor state) -> ()",
        [](const Tensor& state) { generator().set_state(state); });
}

}  // namespace
}  // namespace fake
