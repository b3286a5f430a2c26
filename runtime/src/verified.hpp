// Files whose digests were found right before, so that loading one again need not read all of it.
#pragma once

#include <sys/stat.h>

#include "sha256.hpp"

namespace dhlo {

// What tells a file that nobody has written to since from others: device, inode, size, times of the last change of
// content and of the file. `usable` is false within two seconds of a change, in which a second one may have the same
// time.
struct FileMark {
  explicit FileMark(int fd);
  bool operator==(const FileMark& other) const;

  bool usable = false;
  struct stat info{};
};

// Whether the file with that digest was found to be whole, and is as it was then.
bool is_verified(const FileMark& mark, const Digest& file) noexcept;
// Keeps that it was: a line in a file of the user's cache, which holds 256 at most. Never fails: what can't be kept is
// verified again.
void keep_verified(const FileMark& mark, const Digest& file) noexcept;

}  // namespace dhlo
