// State and random generator of a session as bytes.
#pragma once

#include <cstdint>

#include "session.hpp"

namespace dhlo {

// Bytes of a snapshot of any session of the model.
int64_t snapshot_bytes(const dhlo_abi_model& model);

// `bytes` must be what snapshot_bytes() says. Throws Error.
void write_snapshot(const dhlo_session& session, void* to, int64_t bytes);

// Throws Error, having changed nothing, if these bytes are no snapshot or one of other states.
void read_snapshot(dhlo_session* session, const void* from, int64_t bytes);

}  // namespace dhlo
