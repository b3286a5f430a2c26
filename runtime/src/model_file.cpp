// Reads and validates model files, from disk or from memory, before anything of them is mapped for execution.
#include "model_file.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "pool.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

constexpr int64_t kReadPiece = int64_t{8} << 20;  // bytes that a reading thread takes at a time

std::string system_text(int error) { return std::generic_category().message(error); }

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016" PRIx64, value);
  return text;
}

// A model file that lost its end still carries the exported symbol's name in its code.
bool looks_cut_off(const Source& source) {
  Block head;
  const int64_t bytes = std::min<int64_t>(source.bytes(), int64_t{64} << 20);
  if (!head.allocate(bytes, nullptr)) return false;
  source.read(head.data(), bytes, 0);
  const std::string_view text(reinterpret_cast<const char*>(head.data()), static_cast<size_t>(bytes));
  return text.substr(0, 4) ==
             "\x7f"
             "ELF" &&
         text.find(DHLO_ABI_SYMBOL) != std::string_view::npos;
}

#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr unsigned kMachine = EM_RISCV;
#else
#error "dhlo: architecture without an ELF machine number here"
#endif

void check_elf(const Block& image, int64_t bytes, const std::string& label) {
  Elf64_Ehdr header;
  if (bytes < static_cast<int64_t>(sizeof header))
    throw Error(DHLO_FORMAT, label + ": its code is too small for an ELF image");
  std::memcpy(&header, image.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_type != ET_DYN)
    throw Error(DHLO_FORMAT, label + ": its code is not a 64-bit ELF shared object");
  if (header.e_machine != kMachine)
    throw Error(DHLO_CPU, label + ": built for ELF machine " + std::to_string(header.e_machine) + ", this machine is " +
                              std::to_string(kMachine));
}

}  // namespace

FileSource::FileSource(const char* path) : label_("model file '" + std::string(path) + "'") {
  fd_ = open(path, O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) throw Error(DHLO_IO, label_ + ": cannot be opened: " + system_text(errno));
  struct stat info;
  const bool ok = fstat(fd_, &info) == 0;
  const int error = errno;
  if (ok && S_ISREG(info.st_mode)) {
    bytes_ = info.st_size;
    return;
  }
  close(fd_);
  throw Error(DHLO_IO, label_ + (ok ? ": is not a regular file" : ": cannot be examined: " + system_text(error)));
}

FileSource::~FileSource() { close(fd_); }

void FileSource::read(void* to, int64_t bytes, int64_t offset) const {
  auto* p = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, p, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(DHLO_IO, label_ + ": cannot be read: " + system_text(errno));
    if (got == 0) throw Error(DHLO_IO, label_ + ": became shorter while it was read");
    p += got;
    offset += got;
    bytes -= got;
  }
}

void MemorySource::read(void* to, int64_t bytes, int64_t offset) const {
  if (bytes > 0) std::memcpy(to, data_ + offset, static_cast<size_t>(bytes));
}

Code::~Code() {
  if (handle_ != nullptr) dlclose(handle_);
  if (fd_ >= 0) close(fd_);
}

const dhlo_abi_model* Code::load(const uint8_t* image, int64_t bytes, const std::string& label) {
  fd_ = memfd_create("dhlo-model", MFD_CLOEXEC);
  if (fd_ < 0) throw Error(DHLO_IO, label + ": no anonymous file for its code: " + system_text(errno));
  for (int64_t done = 0; done < bytes;) {
    const ssize_t wrote = write(fd_, image + done, static_cast<size_t>(bytes - done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) throw Error(DHLO_IO, label + ": its code cannot be copied: " + system_text(errno));
    done += wrote;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    const char* text = dlerror();
    throw Error(DHLO_FORMAT, label + ": its code cannot be loaded: " + (text != nullptr ? text : "unknown reason"));
  }
  const void* symbol = dlsym(handle_, DHLO_ABI_SYMBOL);
  if (symbol == nullptr) throw Error(DHLO_FORMAT, label + ": its code does not export '" DHLO_ABI_SYMBOL "'");
  return static_cast<const dhlo_abi_model*>(symbol);
}

dhlo_trailer read_trailer(const Source& source) {
  dhlo_trailer trailer{};
  const auto size = static_cast<int64_t>(sizeof trailer);
  const int64_t file = source.bytes();
  const std::string& label = source.label();
  if (file >= size) source.read(&trailer, size, file - size);
  if (trailer.magic != DHLO_TRAILER_MAGIC) {
    if (file > 0 && looks_cut_off(source))
      throw Error(
          DHLO_FORMAT,
          label +
              ": truncated or not finished: it holds a model's code, but the trailer is missing at the end of its " +
              std::to_string(file) + " bytes");
    throw Error(DHLO_FORMAT, label + ": not a dhlo model: expected trailer magic " + hex(DHLO_TRAILER_MAGIC) +
                                 " at the end of its " + std::to_string(file) + " bytes, got " +
                                 (file >= size ? hex(trailer.magic) : "too few bytes"));
  }
  if (trailer.version != DHLO_ABI_VERSION)
    throw Error(DHLO_VERSION, label + ": model format version " + std::to_string(trailer.version) +
                                  "; this runtime reads version " + std::to_string(DHLO_ABI_VERSION) +
                                  ": use a newer dhlo runtime or compile the model again");
  if (trailer.file_bytes != static_cast<uint64_t>(file))
    throw Error(DHLO_FORMAT, label + ": damaged or truncated: expected " + std::to_string(trailer.file_bytes) +
                                 " bytes, got " + std::to_string(file));
  const auto body = static_cast<uint64_t>(file - size);
  const bool fits = trailer.code_bytes <= body && trailer.constants_offset >= trailer.code_bytes &&
                    trailer.constants_offset <= body && trailer.constants_bytes <= body - trailer.constants_offset;
  if (!fits)
    throw Error(DHLO_FORMAT, label + ": damaged: code of " + std::to_string(trailer.code_bytes) +
                                 " bytes and constants of " + std::to_string(trailer.constants_bytes) + " bytes at " +
                                 std::to_string(trailer.constants_offset) + " do not fit in " + std::to_string(file) +
                                 " bytes");
  return trailer;
}

void read_code(const Source& source, const dhlo_trailer& trailer, Block* image) {
  const auto bytes = static_cast<int64_t>(trailer.code_bytes);
  if (!image->allocate(bytes, nullptr))
    throw Error(DHLO_OUT_OF_MEMORY, source.label() + ": no memory for " + std::to_string(bytes) + " bytes of code");
  source.read(image->data(), bytes, 0);
  const uint64_t hash = dhlo_hash64(image->data(), trailer.code_bytes);
  if (hash != trailer.code_hash)
    throw Error(DHLO_FORMAT,
                source.label() + ": damaged code: expected hash " + hex(trailer.code_hash) + ", got " + hex(hash));
  check_elf(*image, bytes, source.label());
}

void read_constants(const Source& source, const dhlo_trailer& trailer, bool verify, Block* to) {
  const auto bytes = static_cast<int64_t>(trailer.constants_bytes),
             base = static_cast<int64_t>(trailer.constants_offset);
  if (!to->allocate(bytes, nullptr))
    throw Error(DHLO_OUT_OF_MEMORY,
                source.label() + ": no memory for " + std::to_string(bytes) + " bytes of constants");
  const int64_t pieces = (bytes + kReadPiece - 1) / kReadPiece;
  std::atomic<int64_t> next{0};
  // First touch takes as long as the copy, and both run in parallel.
  auto read_pieces = [&] {
    for (int64_t piece = next++; piece < pieces; piece = next++) {
      const int64_t offset = piece * kReadPiece;
      source.read(to->data() + offset, std::min(kReadPiece, bytes - offset), base + offset);
    }
  };
  std::vector<std::thread> readers;
  std::vector<std::exception_ptr> errors(8);
  const int64_t threads = std::min({pieces / 2, Pool::resolve_threads(0), static_cast<int64_t>(errors.size())});
  auto guarded = [&](size_t index) {
    try {
      read_pieces();
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  try {
    readers.reserve(errors.size());
    for (int64_t i = 1; i < threads; ++i) readers.emplace_back(guarded, static_cast<size_t>(i));
  } catch (const std::system_error&) {
    // Fewer threads read.
  }
  guarded(0);
  for (std::thread& reader : readers) reader.join();
  for (const std::exception_ptr& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
  if (!verify) return;
  const uint64_t hash = dhlo_hash64(to->data(), trailer.constants_bytes);
  if (hash != trailer.constants_hash)
    throw Error(DHLO_FORMAT, source.label() + ": damaged constants: expected hash " + hex(trailer.constants_hash) +
                                 ", got " + hex(hash));
}

}  // namespace dhlo
