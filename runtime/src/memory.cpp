// Aligned memory blocks: the host's allocator, or our own with huge pages for large blocks.
#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "support.hpp"

namespace dhlo {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

// An empty block has an address, too.
size_t asked(int64_t bytes) { return static_cast<size_t>(std::max<int64_t>(bytes, 1)); }

void give_back(const dhlo_allocator& host, void* data, size_t bytes) noexcept {
  fenced([&] { return host.free(host.ctx, data, bytes, kAlignment), true; }, false);
}

}  // namespace

std::string over_limit_text(int64_t bytes, const Account& account) {
  return std::to_string(bytes) + " bytes needed, but the environment's limit of " + std::to_string(account.limit()) +
         " bytes leaves " + std::to_string(std::max<int64_t>(account.limit() - account.used(), 0));
}

bool Block::allocate(int64_t bytes, Memory from, int64_t room) noexcept {
  free();
  misaligned_ = over_limit_ = false;
  if (bytes < 0 || bytes > (int64_t{1} << 62)) return false;
  if (from.account != nullptr && !from.account->take(bytes)) {
    over_limit_ = true;
    return false;
  }
  host_ = from.host;
  if (!get(bytes, room)) {
    if (from.account != nullptr) from.account->give(bytes);
    host_ = nullptr;
    return false;
  }
  account_ = from.account;
  bytes_ = bytes;
  return true;
}

bool Block::get(int64_t bytes, int64_t room) noexcept {
  const bool large = bytes >= kHugePage;
  const size_t size = asked(bytes);
  if (host_ != nullptr) {
    data_ = fenced([&] { return host_->alloc(host_->ctx, size, kAlignment); }, static_cast<void*>(nullptr));
    if (data_ == nullptr) return false;
    if (reinterpret_cast<uintptr_t>(data_) % kAlignment != 0) {
      misaligned_ = true;
      give_back(*host_, data_, size);
      data_ = nullptr;
      return false;
    }
  } else if (large) {
    size_t whole_pages = 0, total = 0;
    auto map = [&](int64_t most) {
      whole_pages = static_cast<size_t>(round_up(most, kHugePage));
      total = whole_pages + static_cast<size_t>(kHugePage);
      return mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    };
    void* mapping = map(bytes + std::max<int64_t>(room, 0));
    if (mapping == MAP_FAILED && room > 0) mapping = map(bytes);  // where address space counts
    if (mapping == MAP_FAILED) return false;
    mapping_ = mapping;
    mapping_bytes_ = total;
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    data_ = reinterpret_cast<void*>((address + kHugePage - 1) & ~static_cast<uintptr_t>(kHugePage - 1));
    madvise(data_, whole_pages, MADV_HUGEPAGE);  // advice only: a kernel without huge pages works as well
  } else if (posix_memalign(&data_, kAlignment, size) != 0) {
    data_ = nullptr;
    return false;
  }
  return true;
}

bool Block::extend(int64_t bytes) noexcept {
  if (mapping_ == nullptr) return false;
  const auto begin = reinterpret_cast<uintptr_t>(data_), end = reinterpret_cast<uintptr_t>(mapping_) + mapping_bytes_;
  if (bytes > static_cast<int64_t>(end - begin)) return false;
  if (bytes <= bytes_) return true;
  if (account_ != nullptr && !account_->take(bytes - bytes_)) return false;
  bytes_ = bytes;
  return true;
}

void Block::free() noexcept {
  if (data_ != nullptr) {
    if (host_ != nullptr) {
      give_back(*host_, data_, asked(bytes_));
    } else if (mapping_ != nullptr) {
      munmap(mapping_, mapping_bytes_);
    } else {
      std::free(data_);
    }
  }
  if (data_ != nullptr && account_ != nullptr) account_->give(bytes_);
  data_ = mapping_ = nullptr;
  account_ = nullptr;
  bytes_ = 0;
  mapping_bytes_ = 0;
  host_ = nullptr;
}

Mapping::~Mapping() {
  if (pages_ != nullptr) munmap(pages_, bytes_);
}

bool Mapping::map(int fd, int64_t offset, int64_t bytes, bool populate) noexcept {
  const int64_t before = offset % sysconf(_SC_PAGESIZE);
  const auto length = static_cast<size_t>(before + bytes);
  void* pages = mmap(nullptr, length, PROT_READ, MAP_PRIVATE, fd, offset - before);
  if (pages == MAP_FAILED) return false;
  // Advice only: where the file system has huge pages, what isn't cached yet is read into them. So it comes before any
  // page is touched.
  madvise(pages, length, MADV_HUGEPAGE);
  if (populate && madvise(pages, length, MADV_POPULATE_READ) != 0 && errno == EINVAL)  // Linux before 5.14
    mmap(pages, length, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_POPULATE, fd, offset - before);
  pages_ = pages;
  bytes_ = length;
  data_ = static_cast<const uint8_t*>(pages) + before;
  return true;
}

bool Mapping::lock() const noexcept { return mlock(pages_, bytes_) == 0; }

int64_t grown_bytes(int64_t needed, int64_t held, int64_t budget) noexcept {
  if (needed > (int64_t{1} << 61)) return needed;  // no machine has it; the allocation fails with the true figure
  const int64_t rounded = [](int64_t b) { return round_up(b, b >= kHugePage ? kHugePage : kAlignment); }(needed);
  // Little more than is needed: growing copies nothing, and a session should hold about what its plans say.
  const int64_t wanted = std::max(rounded, held + held / 16);
  return wanted <= budget ? wanted : std::max(needed, std::min(budget, wanted));
}

}  // namespace dhlo
