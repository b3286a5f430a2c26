// Reads and verifies model files, from disk or from memory, before anything of them is mapped for execution.
#include "model_file.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "support.hpp"

namespace dhlo {
namespace {

constexpr int64_t kLargestText = int64_t{1} << 28;  // bytes of metadata or features

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016" PRIx64, value);
  return text;
}

// A model file that lost its end still carries the exported symbol's name in its code.
bool looks_cut_off(const Source& source) {
  Block head;
  const int64_t bytes = std::min<int64_t>(source.bytes(), int64_t{64} << 20);
  if (!head.allocate(bytes, {})) return false;
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

std::string machine_name(unsigned machine) {
  return machine == EM_X86_64    ? "x86-64"
         : machine == EM_AARCH64 ? "aarch64"
         : machine == EM_RISCV   ? "riscv64"
                                 : "ELF machine " + std::to_string(machine);
}

// Exactly one version of each is read: code and runtime must agree on every struct.
void check_version(const std::string& label, const char* what, uint32_t got, uint32_t expected) {
  if (got == expected) return;
  throw Error(DHLO_VERSION, label + ": made for " + what + " version " + std::to_string(got) +
                                "; this runtime reads version " + std::to_string(expected) + ": " +
                                (got > expected ? "use a newer dhlo runtime or " : "") + "compile the model again");
}

const char* section_name(uint32_t kind) {
  static const char* const names[] = {nullptr,    "code",   "constants",    "metadata",
                                      "features", "source", "weights file", "code digests"};
  return kind >= DHLO_SECTION_CODE && kind <= DHLO_SECTION_CODE_DIGESTS ? names[kind] : nullptr;
}

// A file in the same folder, whose name can be shown.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= NAME_MAX && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return static_cast<uint8_t>(c) >= 0x20 && c != 0x7f && c != '/'; });
}

}  // namespace

FileSource::FileSource(const std::string& path, std::string label) : label_(std::move(label)) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer must not hold us up
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

void FileSource::read(void* to, int64_t bytes, int64_t offset) const { read_at(fd_, to, bytes, offset, label_); }

void read_at(int fd, void* to, int64_t bytes, int64_t offset, const std::string& label) {
  auto* p = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(fd, p, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(DHLO_IO, label + ": cannot be read: " + system_text(errno));
    if (got == 0) throw Error(DHLO_IO, label + ": became shorter while it was read");
    p += got;
    offset += got;
    bytes -= got;
  }
}

void MemorySource::read(void* to, int64_t bytes, int64_t offset) const {
  if (bytes > 0) std::memcpy(to, data_ + offset, static_cast<size_t>(bytes));
}

Sections::Sections(const Source& source, Form form) : source_(source), form_(form) {
  read_trailer();
  read_table();
}

void Sections::damaged(const std::string& text) const {
  throw Error(DHLO_FORMAT, source_.label() + ": damaged " + text);
}

void Sections::read_trailer() {
  const auto size = static_cast<int64_t>(sizeof trailer_);
  const int64_t file = source_.bytes();
  const std::string& label = source_.label();
  if (file >= size) source_.read(&trailer_, size, file - size);
  const bool model = form_ == Form::kModel;
  const uint64_t magic = model ? DHLO_TRAILER_MAGIC : DHLO_WEIGHTS_MAGIC;
  if (trailer_.magic == (model ? DHLO_WEIGHTS_MAGIC : DHLO_TRAILER_MAGIC))
    throw Error(DHLO_FORMAT,
                label + (model ? ": is a weights file; load the model file that it belongs to" : ": is a model file"));
  if (trailer_.magic != magic) {
    if (model && file > 0 && looks_cut_off(source_))
      throw Error(
          DHLO_FORMAT,
          label +
              ": truncated or not finished: it holds a model's code, but the trailer is missing at the end of its " +
              std::to_string(file) + " bytes");
    throw Error(DHLO_FORMAT, label + (model ? ": not a dhlo model" : ": truncated, or not a dhlo weights file") +
                                 ": expected trailer magic " + hex(magic) + " at the end of its " +
                                 std::to_string(file) + " bytes, got " +
                                 (file >= size ? hex(trailer_.magic) : "too few bytes"));
  }
  check_version(label, "file format", trailer_.format, DHLO_FILE_FORMAT);
  check_version(label, "ABI", trailer_.abi, DHLO_ABI_VERSION);
  if (trailer_.file_bytes != static_cast<uint64_t>(file))
    throw Error(DHLO_FORMAT, label + ": damaged or truncated: expected " + std::to_string(trailer_.file_bytes) +
                                 " bytes, got " + std::to_string(file));
  file_digest_ = sha256(&trailer_, sizeof trailer_);
}

void Sections::read_table() {
  const auto end = static_cast<uint64_t>(source_.bytes()) - sizeof trailer_;
  const uint64_t bytes = end - trailer_.table_offset;
  if (trailer_.table_offset > end || bytes % sizeof(dhlo_section) != 0 ||
      bytes / sizeof(dhlo_section) > DHLO_MAX_SECTIONS)
    damaged("trailer: its table of sections at " + std::to_string(trailer_.table_offset) + " doesn't fit in " +
            std::to_string(source_.bytes()) + " bytes");
  table_.resize(bytes / sizeof(dhlo_section));
  source_.read(table_.data(), static_cast<int64_t>(bytes), static_cast<int64_t>(trailer_.table_offset));
  const Digest digest = sha256(table_.data(), bytes);
  if (std::memcmp(digest.data(), trailer_.table_digest, digest.size()) != 0)
    damaged("table of sections: expected SHA-256 " + to_hex(trailer_.table_digest, digest.size()) + ", got " +
            to_hex(digest.data(), digest.size()));
  uint64_t at = 0;
  uint32_t seen = 0;
  for (const dhlo_section& section : table_) {
    if (section_name(section.kind) == nullptr || section.reserved != 0)
      damaged("table of sections: a section of the unknown kind " + std::to_string(section.kind));
    const char* name = section_name(section.kind);
    if ((seen & 1u << section.kind) != 0) damaged(std::string("table of sections: two sections of ") + name);
    seen |= 1u << section.kind;
    if (section.offset < at || section.offset - at >= DHLO_SECTION_ALIGN || section.offset > trailer_.table_offset ||
        section.bytes > trailer_.table_offset - section.offset)
      damaged(std::string("table of sections: ") + name + " of " + std::to_string(section.bytes) + " bytes at " +
              std::to_string(section.offset) + " overlaps its neighbours or leaves a gap");
    at = section.offset + section.bytes;
  }
  if (trailer_.table_offset - at >= DHLO_SECTION_ALIGN) damaged("table of sections: a gap behind the last section");
  check_kinds(seen);
}

void Sections::check_kinds(uint32_t seen) const {
  const bool model = form_ == Form::kModel;
  constexpr uint32_t kConstants = 1u << DHLO_SECTION_CONSTANTS, kElsewhere = 1u << DHLO_SECTION_WEIGHTS_FILE;
  uint32_t needed = kConstants, others = 1u << DHLO_SECTION_CODE_DIGESTS;
  if (model) {
    needed = 1u << DHLO_SECTION_CODE | 1u << DHLO_SECTION_METADATA | 1u << DHLO_SECTION_FEATURES |
             ((seen & kElsewhere) != 0 ? kElsewhere : kConstants);
    others = 1u << DHLO_SECTION_SOURCE;
  }
  for (uint32_t kind = DHLO_SECTION_CODE; kind <= DHLO_SECTION_CODE_DIGESTS; ++kind) {
    if ((needed & ~seen & 1u << kind) != 0)
      damaged(std::string("table of sections: there is no section of ") + section_name(kind));
    if ((seen & ~(needed | others) & 1u << kind) != 0)
      damaged(std::string("table of sections: a section of ") + section_name(kind) + " doesn't belong here");
  }
  const uint32_t first = model ? DHLO_SECTION_CODE : DHLO_SECTION_CONSTANTS;
  if (table_[0].kind != first || table_[0].offset != 0)
    damaged(std::string("table of sections: the file doesn't begin with the ") + section_name(first));
}

bool Sections::has(dhlo_section_kind kind) const {
  return std::any_of(table_.begin(), table_.end(), [kind](const dhlo_section& s) { return s.kind == kind; });
}

const dhlo_section& Sections::find(dhlo_section_kind kind) const {
  return *std::find_if(table_.begin(), table_.end(), [kind](const dhlo_section& s) { return s.kind == kind; });
}

void Sections::read(dhlo_section_kind kind, int64_t threads, bool verify, Block* to) const {
  const dhlo_section& section = find(kind);
  const auto bytes = static_cast<int64_t>(section.bytes);
  if (!to->allocate(bytes, {}))
    throw Error(DHLO_OUT_OF_MEMORY, source_.label() + ": no memory for " + std::to_string(bytes) + " bytes of " +
                                        section_name(section.kind));
  auto get = [&](int64_t offset, int64_t length) -> const uint8_t* {
    source_.read(to->data() + offset, length, static_cast<int64_t>(section.offset) + offset);
    return to->data() + offset;
  };
  // First touch takes as long as the copy, and both run in parallel; what is hashed is still in the cache.
  if (!verify) {
    constexpr int64_t kPart = int64_t{8} << 20;
    in_parallel((bytes + kPart - 1) / kPart, threads,
                [&](int64_t part) { get(part * kPart, std::min(kPart, bytes - part * kPart)); });
    return;
  }
  compare(section, section_digest(bytes, threads, get));
}

bool Sections::map(dhlo_section_kind kind, bool populate, Mapping* to) const {
  const dhlo_section& section = find(kind);
  return source_.descriptor() >= 0 && section.bytes > 0 &&
         to->map(source_.descriptor(), static_cast<int64_t>(section.offset), static_cast<int64_t>(section.bytes),
                 populate);
}

void Sections::check(dhlo_section_kind kind, int64_t threads) const {
  const dhlo_section& section = find(kind);
  std::mutex mutex;
  std::map<std::thread::id, Block> windows;  // the part that a thread looks at
  // Read rather than looked at where it is mapped: a disk that fails ends a read with an error, and a process
  // otherwise.
  auto get = [&](int64_t offset, int64_t length) -> const uint8_t* {
    Block* window = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      window = &windows[std::this_thread::get_id()];
    }
    if (window->bytes() < length && !window->allocate(length, {}))
      throw Error(DHLO_OUT_OF_MEMORY,
                  source_.label() + ": no memory to verify its " + section_name(section.kind) + " with");
    source_.read(window->data(), length, static_cast<int64_t>(section.offset) + offset);
    return window->data();
  };
  compare(section, section_digest(static_cast<int64_t>(section.bytes), threads, get));
}

void Sections::compare(const dhlo_section& section, const Digest& got) const {
  if (std::memcmp(got.data(), section.digest, got.size()) != 0)
    damaged(std::string(section_name(section.kind)) + ": expected SHA-256 " + to_hex(section.digest, got.size()) +
            ", got " + to_hex(got.data(), got.size()));
}

std::string Sections::text(dhlo_section_kind kind) const {
  if (bytes(kind) > kLargestText)
    damaged(std::string(section_name(kind)) + ": " + std::to_string(bytes(kind)) + " bytes are more than the " +
            std::to_string(kLargestText) + " that it may have");
  Block data;
  read(kind, 1, true, &data);
  return std::string(reinterpret_cast<const char*>(data.data()), static_cast<size_t>(bytes(kind)));
}

Digest Sections::digest(dhlo_section_kind kind) const {
  Digest out;
  std::memcpy(out.data(), find(kind).digest, out.size());
  return out;
}

WeightsReference Sections::weights() const {
  WeightsReference out;
  if (has(DHLO_SECTION_CONSTANTS)) {
    out.bytes = find(DHLO_SECTION_CONSTANTS).bytes;
    out.digest = digest(DHLO_SECTION_CONSTANTS);
    return out;
  }
  const std::string content = text(DHLO_SECTION_WEIGHTS_FILE);
  dhlo_weights_file row;
  if (content.size() < sizeof row) damaged("weights file: the section is too small");
  std::memcpy(&row, content.data(), sizeof row);
  out.bytes = row.bytes;
  std::memcpy(out.digest.data(), row.digest, out.digest.size());
  out.name = content.substr(sizeof row);
  if (!is_plain_name(out.name)) damaged("weights file: what it names isn't a plain file name");
  return out;
}

bool Sections::made_for(const Digest& code) const {
  if (!has(DHLO_SECTION_CODE_DIGESTS)) return false;
  const std::string digests = text(DHLO_SECTION_CODE_DIGESTS);
  if (digests.size() % code.size() != 0) damaged("code digests: the last one isn't whole");
  for (size_t at = 0; at < digests.size(); at += code.size())
    if (std::memcmp(digests.data() + at, code.data(), code.size()) == 0) return true;
  return false;
}

void Sections::check_padding() const {
  uint64_t at = 0;
  auto check = [&](uint64_t end) {
    uint8_t gap[DHLO_SECTION_ALIGN];
    source_.read(gap, static_cast<int64_t>(end - at), static_cast<int64_t>(at));
    if (std::any_of(gap, gap + (end - at), [](uint8_t byte) { return byte != 0; }))
      damaged("padding at " + std::to_string(at) + ": it isn't zero");
  };
  for (const dhlo_section& section : table_) {
    check(section.offset);
    at = section.offset + section.bytes;
  }
  check(trailer_.table_offset);
}

void check_elf(const uint8_t* image, int64_t bytes, const std::string& label) {
  Elf64_Ehdr header;
  if (bytes < static_cast<int64_t>(sizeof header))
    throw Error(DHLO_FORMAT, label + ": its code is too small for an ELF image");
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_type != ET_DYN)
    throw Error(DHLO_FORMAT, label + ": its code is not a 64-bit ELF shared object");
  if (header.e_machine != kMachine)
    throw Error(DHLO_CPU, label + ": built for " + machine_name(header.e_machine) + ", this machine is " +
                              machine_name(kMachine));
}

}  // namespace dhlo
