// Files whose digests were found right before, so that loading one again need not read all of it.
#include "verified.hpp"

#include <ctime>
#include <string>

#include "cache_file.hpp"
#include "support.hpp"

namespace dhlo {
namespace {

constexpr const char* kVersion = "dhlo verified 1";

std::string identity(const FileMark& mark) {
  return "device " + std::to_string(mark.info.st_dev) + "\ninode " + std::to_string(mark.info.st_ino) + "\n";
}

std::string text_of(const FileMark& mark, const Digest& file) {
  auto time = [](const timespec& t) { return std::to_string(t.tv_sec) + " " + std::to_string(t.tv_nsec) + "\n"; };
  return with_digest(std::string(kVersion) + "\n" + identity(mark) + "bytes " + std::to_string(mark.info.st_size) +
                     "\nmodified " + time(mark.info.st_mtim) + "changed " + time(mark.info.st_ctim) + "file " +
                     to_hex(file.data(), file.size()) + "\n");
}

// One of 256, by device and inode: a file that comes there later takes its place.
std::string path_of(const FileMark& mark) {
  const std::string folder = cache_folder();
  return folder.empty() ? folder : folder + "/verified/" + digest_of(identity(mark)).substr(0, 2) + ".txt";
}

}  // namespace

FileMark::FileMark(int fd) {
  timespec now{};
  if (fd < 0 || fstat(fd, &info) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return;
  usable = info.st_mtim.tv_sec < now.tv_sec - 2 && info.st_ctim.tv_sec < now.tv_sec - 2;
}

bool FileMark::operator==(const FileMark& other) const {
  auto same = [](const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; };
  return info.st_dev == other.info.st_dev && info.st_ino == other.info.st_ino && info.st_size == other.info.st_size &&
         same(info.st_mtim, other.info.st_mtim) && same(info.st_ctim, other.info.st_ctim);
}

bool is_verified(const FileMark& mark, const Digest& file) noexcept {
  bool found = false;
  guard([&] { found = mark.usable && read_cache_file(path_of(mark)) == text_of(mark, file); }, [](const char*) {});
  return found;
}

void keep_verified(const FileMark& mark, const Digest& file) noexcept {
  guard(
      [&] {
        if (mark.usable) write_cache_file(path_of(mark), text_of(mark, file));
      },
      [](const char*) {});
}

}  // namespace dhlo
