// The dispatch keys that kernels of the simulated device use.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace hpu_sim {

inline constexpr c10::DispatchKeySet kCpuKeys(c10::DispatchKey::CPU);
inline constexpr c10::DispatchKeySet kMetaKeys(c10::DispatchKey::Meta);
inline constexpr c10::DispatchKeySet kHpuKeys(c10::DispatchKey::HPU);

/// What has already run when a backend's kernel is called, and must not run again for the CPU.
inline const c10::DispatchKeySet kKeysAboveBackend =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

}  // namespace hpu_sim
