// Maps the code of a model: from an anonymous file, or from a private temporary one where there is no /proc.
#include "code.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

#include "support.hpp"

namespace dhlo {
namespace {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

  // False with errno if it can't be written.
  bool fill(const uint8_t* data, int64_t bytes) const {
    while (bytes > 0) {
      const ssize_t wrote = write(fd_, data, static_cast<size_t>(bytes));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return false;
      data += wrote;
      bytes -= wrote;
    }
    return true;
  }

 private:
  int fd_;
};

// A path of the open file that no loaded library has. The dynamic loader takes a name that it knows for the library
// that it loaded under it, though the number may since have been closed and given to another file: so each attempt
// spells the path otherwise, the bits of a counter being "/." and "/".
std::string unused_name(int fd) {
  for (unsigned attempt = 1; attempt != 0; ++attempt) {
    std::string path = "/proc/self/fd";
    for (unsigned bits = attempt; bits > 1; bits >>= 1) path += (bits & 1u) != 0 ? "/." : "/";
    path += "/" + std::to_string(fd);
    void* known = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (known == nullptr) return path;
    dlclose(known);
  }
  return {};
}

// Why code couldn't be loaded: what the dynamic loader said first, or else that it never got a file.
struct Reasons {
  std::string loader, files;

  void* open(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr && loader.empty()) loader = dlerror();
    return handle;
  }
  void* no_file(const std::string& what, int error) {
    if (!files.empty()) files += "; ";
    files += what + ": " + std::generic_category().message(error);
    return nullptr;
  }
};

void* open_anonymous(const uint8_t* image, int64_t bytes, Reasons* why) {
  const File file(memfd_create("dhlo-model", MFD_CLOEXEC));
  if (file.fd() < 0 || !file.fill(image, bytes)) return why->no_file("anonymous file", errno);
  const std::string path = unused_name(file.fd());
  // Whether /proc is there and shows this very file.
  struct stat here{}, there{};
  if (fstat(file.fd(), &here) != 0 || stat(path.c_str(), &there) != 0 || here.st_ino != there.st_ino ||
      here.st_dev != there.st_dev)
    return why->no_file(path, ENOENT);
  return why->open(path);
}

// In a folder of a new name that only this user can enter; file and folder are gone when it returns.
void* open_temporary(const std::string& parent, const uint8_t* image, int64_t bytes, Reasons* why) {
  std::string folder = parent + "/dhlo-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return why->no_file(parent, errno);
  const std::string path = folder + "/model.so";
  void* handle = nullptr;
  {
    const File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0700));
    const bool written = file.fd() >= 0 && file.fill(image, bytes);
    handle = written ? why->open(path) : why->no_file(path, errno);
  }
  unlink(path.c_str());
  rmdir(folder.c_str());
  return handle;
}

std::vector<std::string> temporary_folders() {
  std::vector<std::string> folders;
  if (const char* chosen = secure_getenv("TMPDIR"); chosen != nullptr && *chosen == '/') folders.emplace_back(chosen);
  for (const char* usual : {"/tmp", "/var/tmp", "/dev/shm"}) folders.emplace_back(usual);
  return folders;
}

// That what was mapped at `symbol` is the image: whatever the dynamic loader doesn't write to is compared with it.
bool is_mapped(const void* handle, const uint8_t* image, int64_t bytes, const void* symbol) {
  const link_map* map = nullptr;
  if (dlinfo(const_cast<void*>(handle), RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return false;
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  const auto size = static_cast<uint64_t>(bytes);
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > size ||
      header.e_phnum > (size - header.e_phoff) / sizeof(Elf64_Phdr))
    return false;
  const auto at = reinterpret_cast<uint64_t>(symbol) - map->l_addr;
  bool holds_symbol = false;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    std::memcpy(&part, image + header.e_phoff + i * sizeof part, sizeof part);
    if (part.p_type != PT_LOAD) continue;
    if (part.p_offset > size || part.p_filesz > size - part.p_offset) return false;
    holds_symbol |= at >= part.p_vaddr && at - part.p_vaddr < part.p_memsz;
    if ((part.p_flags & PF_W) != 0 || (part.p_flags & PF_R) == 0) continue;
    const auto* mapped = reinterpret_cast<const uint8_t*>(map->l_addr + part.p_vaddr);
    if (std::memcmp(mapped, image + part.p_offset, part.p_filesz) != 0) return false;
  }
  return holds_symbol;
}

}  // namespace

Code::~Code() {
  if (handle_ != nullptr) dlclose(handle_);
}

const dhlo_abi_model* Code::load(const uint8_t* image, int64_t bytes, const std::string& label) {
  Reasons why;
  handle_ = open_anonymous(image, bytes, &why);
  for (const std::string& folder : temporary_folders())
    if (handle_ == nullptr) handle_ = open_temporary(folder, image, bytes, &why);
  if (handle_ == nullptr)
    throw Error(why.loader.empty() ? DHLO_IO : DHLO_FORMAT,
                label + ": its code cannot be loaded: " + (why.loader.empty() ? why.files : why.loader));
  const void* symbol = dlsym(handle_, DHLO_ABI_SYMBOL);
  if (symbol == nullptr) throw Error(DHLO_FORMAT, label + ": its code does not export '" DHLO_ABI_SYMBOL "'");
  if (!is_mapped(handle_, image, bytes, symbol))
    throw Error(DHLO_INTERNAL, label + ": the dynamic loader mapped something else than its code");
  return static_cast<const dhlo_abi_model*>(symbol);
}

}  // namespace dhlo
