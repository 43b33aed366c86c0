#include "reference/scale_layout.hpp"

namespace commfuse::reference {
namespace {

struct Tile {
  std::uint64_t rows;
  std::uint64_t blocks;
};

Tile tile_of(ScaleLayout layout, std::uint64_t blocks) {
  switch (layout) {
    case ScaleLayout::kSwizzled128x4:
      return {128, 4};
    case ScaleLayout::kSwizzled8x4:
      return {8, 4};
    case ScaleLayout::kLinear:
      break;
  }
  return {1, blocks};
}

std::uint64_t tiles(std::uint64_t count, std::uint64_t unit) { return count / unit + (count % unit != 0 ? 1 : 0); }

}  // namespace

std::uint64_t fp4_scale_bytes(ScaleLayout layout, std::uint64_t rows, std::uint64_t blocks) {
  const Tile tile = tile_of(layout, blocks);
  return tiles(rows, tile.rows) * tile.rows * tiles(blocks, tile.blocks) * tile.blocks;
}

std::uint64_t fp4_scale_offset(ScaleLayout layout, std::uint64_t row, std::uint64_t block, std::uint64_t blocks) {
  const Tile tile = tile_of(layout, blocks);
  const std::uint64_t tile_index = row / tile.rows * tiles(blocks, tile.blocks) + block / tile.blocks;
  std::uint64_t row_in_tile = row % tile.rows;
  // Data rows r, r + 32, r + 64 and r + 96 are stored next to each other.
  if (layout == ScaleLayout::kSwizzled128x4) row_in_tile = row_in_tile % 32 * 4 + row_in_tile / 32;
  return (tile_index * tile.rows + row_in_tile) * tile.blocks + block % tile.blocks;
}

}  // namespace commfuse::reference
