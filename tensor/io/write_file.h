// Atomic replacement of a file, used by every writer of the library. The content goes into a new file beside
// the target, which is renamed once it is complete and on the disk. So a crash, a full disk or an error
// leaves the old file unchanged. An error removes the new file; a killed process leaves it behind, as
// ".weft-<process>-<n>.tmp".
#pragma once

#include <string>
#include <string_view>

#include <weft/kernels/error.h>

namespace weft {

/// Makes `bytes` the content of the file at `path`. A symbolic link is followed and kept. An existing file
/// keeps its mode, and its owner where the system allows; its other hard links keep the old content.
/// Throws: IoError that names the path, for a missing or unwritable folder, a path that is no regular file,
/// or a failed write.
WEFT_API void write_file(const std::string& path, std::string_view bytes);

/// Throws the IoError that write_file would throw before its first byte. Changes nothing.
WEFT_API void check_writable(const std::string& path);

/// write_file for the output of a program. A pipe, a terminal, a character device or a link to an open file
/// (/dev/stdout, /dev/fd/63) is not replaced. The bytes are written into it, after flushing stdout.
/// Throws: IoError as write_file, and for a stream that takes no bytes.
WEFT_API void write_output(const std::string& path, std::string_view bytes);

/// check_writable for write_output; it opens no stream.
WEFT_API void check_output(const std::string& path);

}  // namespace weft
