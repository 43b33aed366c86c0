// Where the scale of a block of columns lies in memory. Shared with the host, which checks sizes with it.
#pragma once

#include "device/types.cuh"

namespace commfuse::device {

/// Arrangement of FP4 scales, one byte per block of 16 columns. The numbers are those of public interfaces.
enum class ScaleLayout : int {
  kSwizzled128x4 = 0,  ///< tiles of 128 rows by 4 blocks, as tensor cores of sm_100 read them; padded to whole tiles
  kSwizzled8x4 = 1,    ///< tiles of 8 rows by 4 blocks; padded to whole tiles
  kLinear = 2,         ///< row-major, no padding
};

constexpr u32 kFp4BlockColumns = 16;
constexpr u32 kFp8BlockColumns = 128;

COMMFUSE_SHARED u64 round_up_to(u64 value, u64 unit) { return (value + unit - 1) / unit * unit; }

/// Rows of a whole number of tiles.
COMMFUSE_SHARED u64 padded_rows(ScaleLayout layout, u64 rows) {
  if (layout == ScaleLayout::kSwizzled128x4) return round_up_to(rows, 128);
  if (layout == ScaleLayout::kSwizzled8x4) return round_up_to(rows, 8);
  return rows;
}
/// Blocks of a whole number of tiles.
COMMFUSE_SHARED u64 padded_blocks(ScaleLayout layout, u64 blocks) {
  return layout == ScaleLayout::kLinear ? blocks : round_up_to(blocks, 4);
}
/// Bytes of the scales of `rows` rows of `blocks` blocks.
COMMFUSE_SHARED u64 fp4_scale_bytes(ScaleLayout layout, u64 rows, u64 blocks) {
  return padded_rows(layout, rows) * padded_blocks(layout, blocks);
}

/// Offset in bytes of the scale of block `block` of row `row`, padding included. In the swizzled layouts the four
/// blocks of one row of a tile are one aligned 32-bit word.
COMMFUSE_SHARED u64 fp4_scale_offset(ScaleLayout layout, u64 row, u64 block, u64 blocks) {
  const u64 tiles = (blocks + 3) / 4;  // side by side
  if (layout == ScaleLayout::kSwizzled128x4) {
    // 32 rows stride through a tile; the four groups of 32 lie beside each other within 16 bytes.
    return ((row / 128) * tiles + block / 4) * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + block % 4;
  }
  if (layout == ScaleLayout::kSwizzled8x4) return ((row / 8) * tiles + block / 4) * 32 + (row % 8) * 4 + block % 4;
  return row * blocks + block;
}

/// fp32 scales of 1 x 128 blocks are column-major: element index of the scale of block `block` of row `row`. `stride`
/// is the distance of two columns, a multiple of 4 that is at least the number of rows.
COMMFUSE_SHARED u64 block_scale_index(u64 row, u64 block, u64 stride) { return block * stride + row; }

/// UE8M0 scales are packed four groups to a 32-bit word, words column-major: offset in bytes of the scale of group
/// `group` of row `row`; `stride` as above, in words.
COMMFUSE_SHARED u64 packed_scale_offset(u64 row, u64 group, u64 stride) {
  return ((group / 4) * stride + row) * 4 + group % 4;
}

/// Elements that `columns` columns of `rows` scales span in either column-major form: the last column ends with its
/// last row, so that a view cut out of a larger tensor fits.
COMMFUSE_SHARED u64 column_major_elements(u64 rows, u64 columns, u64 stride) {
  return rows == 0 || columns == 0 ? 0 : (columns - 1) * stride + rows;
}

}  // namespace commfuse::device
