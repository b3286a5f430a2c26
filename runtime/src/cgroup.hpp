// How much processor time the control group of this process allows it.
#pragma once

#include <cstdint>

namespace dhlo {

// Processors, rounded up, that the quotas of the process' control group and of those around it amount to (cpu.max of
// version 2, cpu.cfs_quota_us of version 1); INT64_MAX if there is none. `groups` is a file such as /proc/self/cgroup,
// `root` the folder where control groups are mounted.
int64_t cgroup_processors(const char* groups = "/proc/self/cgroup", const char* root = "/sys/fs/cgroup");

}  // namespace dhlo
