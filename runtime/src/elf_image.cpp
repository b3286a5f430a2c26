// An ELF shared object in memory of this process: mapped, relocated and protected without files or the dynamic loader.
#include "elf_image.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "support.hpp"

namespace dhlo {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 31;  // bytes of address space that code and data may take

// Of <elf.h> since glibc 2.36.
constexpr int64_t kDtRelrSize = 35, kDtRelr = 36, kDtRelrEntry = 37;

#if defined(__x86_64__)
constexpr uint32_t kNone = R_X86_64_NONE, kRelative = R_X86_64_RELATIVE, kAbsolute = R_X86_64_64,
                   kGlobal = R_X86_64_GLOB_DAT, kJump = R_X86_64_JUMP_SLOT;
constexpr bool kAddends = false;  // whether those of the last two count
#elif defined(__aarch64__)
constexpr uint32_t kNone = R_AARCH64_NONE, kRelative = R_AARCH64_RELATIVE, kAbsolute = R_AARCH64_ABS64,
                   kGlobal = R_AARCH64_GLOB_DAT, kJump = R_AARCH64_JUMP_SLOT;
constexpr bool kAddends = true;
#elif defined(__riscv)
constexpr uint32_t kNone = R_RISCV_NONE, kRelative = R_RISCV_RELATIVE, kAbsolute = R_RISCV_64, kGlobal = R_RISCV_64,
                   kJump = R_RISCV_JUMP_SLOT;
constexpr bool kAddends = true;
#else
#error "dhlo: architecture without relocations here"
#endif

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t page_down(uint64_t address) { return address & ~(page_bytes() - 1); }
uint64_t page_up(uint64_t address) { return page_down(address + page_bytes() - 1); }

int protection(uint32_t flags) {
  return ((flags & PF_R) != 0 ? PROT_READ : 0) | ((flags & PF_W) != 0 ? PROT_WRITE : 0) |
         ((flags & PF_X) != 0 ? PROT_EXEC : 0);
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t total) { return offset <= total && bytes <= total - offset; }

uint32_t gnu_hash(const char* name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

template <class T>
T read_from(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::vector<std::string> split_folders(const std::string& path) {
  std::vector<std::string> folders;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    if (end > at) folders.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return folders;
}

}  // namespace

ElfImage::~ElfImage() {
  if (base_ != nullptr) munmap(base_, span_);
}

void ElfImage::malformed(const char* what, const std::string& more) const {
  throw Error(DHLO_FORMAT, label_ + ": its code cannot be loaded: " + what + more);
}

// ------------------------------------------------------------------ mapping
void ElfImage::map(const uint8_t* image, int64_t bytes, const std::string& label) {
  label_ = label;
  const auto size = static_cast<uint64_t>(bytes);
  const auto header = read_from<Elf64_Ehdr>(image);
  if (header.e_phentsize != sizeof(Elf64_Phdr) ||
      !inside(header.e_phoff, header.e_phnum * uint64_t{sizeof(Elf64_Phdr)}, size))
    malformed("its program headers lie outside of it");
  Table dynamic;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    const auto part = read_from<Elf64_Phdr>(image + header.e_phoff + i * sizeof(Elf64_Phdr));
    if (part.p_type == PT_LOAD) add_segment(part, size);
    if (part.p_type == PT_DYNAMIC) dynamic = {part.p_vaddr, part.p_memsz};
    if (part.p_type == PT_GNU_RELRO) relro_ = {part.p_vaddr, part.p_memsz};
    if (part.p_type == PT_TLS) malformed("it has thread-local variables, which code of models can't have");
  }
  if (segments_.empty()) malformed("it has no segments");
  low_ = segments_.front().address;
  span_ = segments_.back().address + segments_.back().bytes - low_;
  if (span_ > kMost) malformed("its segments are too large: bytes: ", std::to_string(span_));
  void* mapped = mmap(nullptr, span_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    throw Error(DHLO_OUT_OF_MEMORY, label_ + ": no memory for " + std::to_string(span_) + " bytes of code");
  base_ = static_cast<uint8_t*>(mapped);
  bias_ = reinterpret_cast<uint64_t>(base_) - low_;
  for (const Segment& segment : segments_) {
    if (mprotect(base_ + (segment.address - low_), segment.bytes, PROT_READ | PROT_WRITE) != 0)
      throw Error(DHLO_OUT_OF_MEMORY, label_ + ": no memory for " + std::to_string(segment.bytes) + " bytes of code");
    std::memcpy(base_ + (segment.exact_address - low_), image + segment.offset, segment.content);
  }
  read_dynamic(dynamic);
}

void ElfImage::add_segment(const Elf64_Phdr& part, uint64_t image_bytes) {
  if (part.p_memsz == 0 && part.p_filesz == 0) return;
  if (part.p_filesz > part.p_memsz || !inside(part.p_offset, part.p_filesz, image_bytes))
    malformed("a segment's content lies outside of it");
  if (!inside(part.p_vaddr, part.p_memsz, kMost)) malformed("a segment's address is too large");
  if ((part.p_flags & PF_W) != 0 && (part.p_flags & PF_X) != 0) malformed("a segment would be writable and executable");
  const uint64_t start = page_down(part.p_vaddr), end = page_up(part.p_vaddr + part.p_memsz);
  if (!segments_.empty() && start < segments_.back().address + segments_.back().bytes)
    malformed("segments overlap, or share a page; bytes of a page: ", std::to_string(page_bytes()));
  segments_.push_back({start, end - start, part.p_vaddr, part.p_memsz, part.p_offset, part.p_filesz, part.p_flags});
}

// The memory at an address of the image; it lies in one segment, which has the flags.
uint8_t* ElfImage::at(uint64_t address, uint64_t bytes, const char* what, uint32_t flags) const {
  for (const Segment& segment : segments_)
    if (address >= segment.exact_address && inside(address - segment.exact_address, bytes, segment.exact_bytes) &&
        (segment.flags & flags) == flags)
      return base_ + (address - low_);
  malformed(what, " lies outside of its segments");
}

template <class T>
T ElfImage::read(uint64_t address, const char* what) const {
  return read_from<T>(at(address, sizeof(T), what, PF_R));
}

void ElfImage::read_dynamic(Table dynamic) {
  std::vector<uint64_t> names, paths;
  uint64_t ended = 0;
  for (uint64_t at = 0; ended == 0 && inside(at, sizeof(Elf64_Dyn), dynamic.bytes); at += sizeof(Elf64_Dyn)) {
    const auto entry = read<Elf64_Dyn>(dynamic.address + at, "its dynamic section");
    const uint64_t value = entry.d_un.d_val;
    switch (entry.d_tag) {
      case DT_NULL: ended = 1; break;
      case DT_STRTAB: strings_.address = value; break;
      case DT_STRSZ: strings_.bytes = value; break;
      case DT_SYMTAB: symbols_ = value; break;
      case DT_GNU_HASH: hash_ = value; break;
      case DT_RELA: relocations_.address = value; break;
      case DT_RELASZ: relocations_.bytes = value; break;
      case DT_JMPREL: plt_.address = value; break;
      case DT_PLTRELSZ: plt_.bytes = value; break;
      case kDtRelr: relative_.address = value; break;
      case kDtRelrSize: relative_.bytes = value; break;
      case DT_INIT: initial_.one = value; break;
      case DT_INIT_ARRAY: initial_.array.address = value; break;
      case DT_INIT_ARRAYSZ: initial_.array.bytes = value; break;
      case DT_FINI: final_.one = value; break;
      case DT_FINI_ARRAY: final_.array.address = value; break;
      case DT_FINI_ARRAYSZ: final_.array.bytes = value; break;
      case DT_NEEDED: names.push_back(value); break;
      case DT_RPATH:
      case DT_RUNPATH: paths.push_back(value); break;
      case DT_SYMENT:
        if (value != sizeof(Elf64_Sym)) malformed("its symbols have another size");
        break;
      case DT_RELAENT:
        if (value != sizeof(Elf64_Rela)) malformed("its relocations have another size");
        break;
      case kDtRelrEntry:
        if (value != sizeof(uint64_t)) malformed("its relative relocations have another size");
        break;
      case DT_PLTREL:
        if (value != DT_RELA) malformed("its relocations have no addends");
        break;
      case DT_REL: malformed("its relocations have no addends");
      case DT_TEXTREL: malformed("its code would have to be written to");
      case DT_FLAGS:
        if ((value & DF_TEXTREL) != 0) malformed("its code would have to be written to");
        break;
      default: break;  // what says nothing about how to load it
    }
  }
  if (strings_.bytes > 0) at(strings_.address, strings_.bytes, "its table of strings", PF_R);
  for (uint64_t name : names) needed_.emplace_back(text(name));
  for (uint64_t path : paths)
    for (const std::string& folder : split_folders(text(path))) folders_.push_back(folder);
}

const char* ElfImage::text(uint64_t offset) const {
  if (offset >= strings_.bytes) malformed("a name lies outside of its table of strings");
  const auto* start = reinterpret_cast<const char*>(base_ + (strings_.address - low_) + offset);
  if (std::memchr(start, '\0', strings_.bytes - offset) == nullptr) malformed("its table of strings has no end");
  return start;
}

// ------------------------------------------------------------------ relocations
uint64_t ElfImage::symbol_address(uint64_t index, const Resolve& resolve) const {
  if (index == 0) return 0;
  const auto symbol = read<Elf64_Sym>(symbols_ + index * sizeof(Elf64_Sym), "a symbol");
  const unsigned type = ELF64_ST_TYPE(symbol.st_info);
  if (type == STT_TLS || type == STT_GNU_IFUNC)
    malformed("code of models can't have symbols of a kind like that of ", text(symbol.st_name));
  if (symbol.st_shndx == SHN_ABS) return symbol.st_value;
  if (symbol.st_shndx != SHN_UNDEF) return bias_ + symbol.st_value;
  const char* name = text(symbol.st_name);
  const void* found = resolve(name);
  if (found == nullptr && ELF64_ST_BIND(symbol.st_info) != STB_WEAK)
    malformed("nothing in this process defines ", "'" + std::string(name) + "'");
  return reinterpret_cast<uint64_t>(found);
}

void ElfImage::apply(const Table& relocations, const Resolve& resolve) {
  for (uint64_t offset = 0; inside(offset, sizeof(Elf64_Rela), relocations.bytes); offset += sizeof(Elf64_Rela)) {
    const auto entry = read<Elf64_Rela>(relocations.address + offset, "a relocation");
    const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
    const auto addend = static_cast<uint64_t>(entry.r_addend);
    uint64_t value = 0;
    if (type == kNone) continue;
    if (type == kRelative)
      value = bias_ + addend;
    else if (type == kAbsolute || type == kGlobal || type == kJump)
      value = symbol_address(ELF64_R_SYM(entry.r_info), resolve) + (type == kAbsolute || kAddends ? addend : 0);
    else
      malformed("code of models can't have relocations of type ", std::to_string(type));
    std::memcpy(at(entry.r_offset, sizeof value, "what a relocation writes to", PF_W), &value, sizeof value);
  }
}

void ElfImage::add_bias(uint64_t address) {
  uint8_t* place = at(address, sizeof(uint64_t), "what a relocation writes to", PF_W);
  const uint64_t value = read_from<uint64_t>(place) + bias_;
  std::memcpy(place, &value, sizeof value);
}

// An even entry is an address, an odd one a bit for each of the 63 words behind what came before.
void ElfImage::apply_relative() {
  uint64_t next = 0;
  for (uint64_t offset = 0; inside(offset, sizeof next, relative_.bytes); offset += sizeof next) {
    const auto entry = read<uint64_t>(relative_.address + offset, "a relative relocation");
    if ((entry & 1) == 0) {
      add_bias(entry);
      next = entry + sizeof next;
      continue;
    }
    for (uint64_t bit = 1; bit < 64; ++bit)
      if ((entry >> bit & 1) != 0) add_bias(next + (bit - 1) * sizeof next);
    next += 63 * sizeof next;
  }
}

void ElfImage::relocate(const Resolve& resolve) {
  apply_relative();
  apply(relocations_, resolve);
  apply(plt_, resolve);
  protect();
}

void ElfImage::protect() {
  auto set = [this](uint64_t address, uint64_t bytes, uint32_t flags) {
    if (bytes == 0 || mprotect(base_ + (address - low_), bytes, protection(flags)) == 0) return;
    throw Error(DHLO_IO, label_ + ": its code cannot be loaded: the system doesn't let memory become " +
                             ((flags & PF_X) != 0 ? "executable: " : "read-only: ") +
                             std::generic_category().message(errno));
  };
  for (const Segment& segment : segments_) {
    __builtin___clear_cache(reinterpret_cast<char*>(base_ + (segment.address - low_)),
                            reinterpret_cast<char*>(base_ + (segment.address - low_) + segment.bytes));
    set(segment.address, segment.bytes, segment.flags);
  }
  if (relro_.bytes == 0) return;
  for (const Segment& segment : segments_) {
    if ((segment.flags & PF_W) == 0 || relro_.address < segment.exact_address) continue;
    if (!inside(relro_.address - segment.address, relro_.bytes, segment.bytes)) continue;
    const uint64_t start = page_down(relro_.address), end = page_down(relro_.address + relro_.bytes);
    if (end > start) set(start, end - start, PF_R);
    return;
  }
  malformed("what is to be read-only lies outside of its segments");
}

// ------------------------------------------------------------------ symbols and functions
const void* ElfImage::find(const char* name, uint64_t bytes) const {
  if (hash_ == 0) malformed("it has no table of exported symbols (DT_GNU_HASH)");
  const char* const what = "its table of exported symbols";
  const auto buckets = read<uint32_t>(hash_, what), first = read<uint32_t>(hash_ + 4, what),
             blooms = read<uint32_t>(hash_ + 8, what);
  if (buckets == 0) return nullptr;
  const uint32_t hash = gnu_hash(name);
  const uint64_t table = hash_ + 16 + blooms * uint64_t{8}, chains = table + buckets * uint64_t{4};
  const auto start = read<uint32_t>(table + hash % buckets * uint64_t{4}, what);
  if (start < first) return nullptr;
  for (uint64_t index = start;; ++index) {  // ends where the segment does, if not before
    const auto link = read<uint32_t>(chains + (index - first) * 4, what);
    if ((link | 1) == (hash | 1)) {
      const auto symbol = read<Elf64_Sym>(symbols_ + index * sizeof(Elf64_Sym), "a symbol");
      if (symbol.st_shndx != SHN_UNDEF && std::strcmp(text(symbol.st_name), name) == 0) {
        if (symbol.st_value % alignof(uint64_t) != 0) malformed(name, " isn't aligned");
        return at(symbol.st_value, bytes, name, PF_R);
      }
    }
    if ((link & 1) != 0) return nullptr;
  }
}

std::vector<void (*)()> ElfImage::functions(const Functions& of) const {
  std::vector<void (*)()> found;
  auto add = [&](uint64_t address) {
    found.push_back(reinterpret_cast<void (*)()>(at(address, 1, "a constructor or destructor", PF_X)));
  };
  if (of.one != 0) add(of.one);
  for (uint64_t offset = 0; inside(offset, sizeof(uint64_t), of.array.bytes); offset += sizeof(uint64_t)) {
    const auto address = read<uint64_t>(of.array.address + offset, "a table of constructors or destructors");
    if (address != 0 && address != ~uint64_t{0}) add(address - bias_);
  }
  return found;
}

std::vector<void (*)()> ElfImage::destructors() const {
  std::vector<void (*)()> found = functions(final_);
  std::reverse(found.begin(), found.end());
  return found;
}

std::vector<ElfImage::Function> ElfImage::functions_of(const uint8_t* image, int64_t bytes) {
  std::vector<Function> found;
  const auto size = static_cast<uint64_t>(bytes);
  const auto header = read_from<Elf64_Ehdr>(image);
  if (header.e_shentsize != sizeof(Elf64_Shdr)) return found;
  auto section = [&](uint64_t index, Elf64_Shdr* out) {
    if (index >= header.e_shnum || !inside(header.e_shoff, (index + 1) * sizeof(Elf64_Shdr), size)) return false;
    *out = read_from<Elf64_Shdr>(image + header.e_shoff + index * sizeof(Elf64_Shdr));
    return inside(out->sh_offset, out->sh_size, size);
  };
  Elf64_Shdr symbols, strings;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    if (!section(i, &symbols) || symbols.sh_type != SHT_SYMTAB || !section(symbols.sh_link, &strings)) continue;
    const std::string_view names(reinterpret_cast<const char*>(image + strings.sh_offset), strings.sh_size);
    for (uint64_t at = 0; inside(at, sizeof(Elf64_Sym), symbols.sh_size); at += sizeof(Elf64_Sym)) {
      const auto symbol = read_from<Elf64_Sym>(image + symbols.sh_offset + at);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF || symbol.st_name >= names.size())
        continue;
      const std::string_view name = names.substr(symbol.st_name);
      found.push_back({symbol.st_value, symbol.st_size, name.substr(0, name.find('\0'))});
    }
  }
  return found;
}

}  // namespace dhlo
