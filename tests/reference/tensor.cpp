#include "reference/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "reference/formats.hpp"

namespace commfuse::reference {
namespace {

template <typename T>
T read(const Bytes& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void write(Bytes& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

void require_room(const Bytes& bytes, DataType type, std::size_t first, std::size_t count) {
  if ((first + count) * static_cast<std::size_t>(element_bytes(type)) > bytes.size()) {
    throw std::out_of_range("reference: a tensor is smaller than its shape says");
  }
}

}  // namespace

int element_bytes(DataType type) { return type == DataType::kFp32 ? 4 : 2; }

std::vector<float> widen(const Bytes& bytes, DataType type, std::size_t first, std::size_t count) {
  require_room(bytes, type, first, count);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (type) {
      case DataType::kFp16:
        values[i] = from_half(read<std::uint16_t>(bytes, first + i));
        break;
      case DataType::kBf16:
        values[i] = from_bfloat(read<std::uint16_t>(bytes, first + i));
        break;
      case DataType::kFp32:
        values[i] = read<float>(bytes, first + i);
        break;
    }
  }
  return values;
}

void narrow(std::span<const float> values, DataType type, Bytes& bytes, std::size_t first) {
  require_room(bytes, type, first, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (type) {
      case DataType::kFp16:
        write(bytes, first + i, to_half(values[i]));
        break;
      case DataType::kBf16:
        write(bytes, first + i, to_bfloat(values[i]));
        break;
      case DataType::kFp32:
        write(bytes, first + i, std::isnan(values[i]) ? kCanonicalNan : bits_of(values[i]));
        break;
    }
  }
}

float round_to(DataType type, float value) {
  switch (type) {
    case DataType::kFp16:
      return from_half(to_half(value));
    case DataType::kBf16:
      return from_bfloat(to_bfloat(value));
    case DataType::kFp32:
      return value;
  }
  return value;
}

Rows rows_of_rank(std::int64_t tokens, int world_size, int rank) {
  const std::int64_t each = tokens / world_size;
  const std::int64_t rest = tokens % world_size;
  return {rank * each + std::min<std::int64_t>(rank, rest), each + (rank < rest ? 1 : 0)};
}

int owner_of_row(std::int64_t tokens, int world_size, std::int64_t row) {
  for (int rank = 0; rank < world_size; ++rank) {
    const Rows rows = rows_of_rank(tokens, world_size, rank);
    if (row >= rows.begin && row < rows.begin + rows.count) return rank;
  }
  throw std::out_of_range("reference: no rank owns this row");
}

Bytes slice_rows(const Bytes& matrix, std::size_t row_bytes, Rows rows) {
  const auto begin = matrix.begin() + rows.begin * static_cast<std::int64_t>(row_bytes);
  return Bytes(begin, begin + rows.count * static_cast<std::int64_t>(row_bytes));
}

}  // namespace commfuse::reference
