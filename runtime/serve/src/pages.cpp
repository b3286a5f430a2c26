// Zeroed memory of the system's, which takes room only where it was written to.
#include "pages.hpp"

#include <sys/mman.h>

namespace dhlo::serve {

constexpr int64_t kHugePage = int64_t{2} << 20;

Pages::~Pages() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_);
}

bool Pages::map(int64_t bytes, bool huge) noexcept {
  if (bytes <= 0 || bytes > (int64_t{1} << 61)) return false;
  huge = huge && bytes >= kHugePage;
  const auto size = static_cast<size_t>(bytes + (huge ? kHugePage : 0));
  void* mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return false;
  mapping_ = mapping;
  bytes_ = size;
  auto address = reinterpret_cast<uintptr_t>(mapping);
  if (huge) address = (address + kHugePage - 1) & ~static_cast<uintptr_t>(kHugePage - 1);
  data_ = reinterpret_cast<uint8_t*>(address);
  // Advice only: works without, too.
  madvise(data_, static_cast<size_t>(bytes), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return true;
}

}  // namespace dhlo::serve
