// templates/device/scale_layout.cuh against tables built by walking memory in order and saying which scale lies there.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "device/scale_layout.cuh"
#include "reference/scale_layout.hpp"

namespace commfuse {
namespace {

using device::ScaleLayout;

using Place = std::pair<std::uint64_t, std::uint64_t>;  // row, block

/// Memory of the 128x4 layout in order: tiles left to right, then down; within a tile, stored row i holds data row
/// (i mod 4) * 32 + i / 4, four blocks each.
std::vector<Place> walk_128x4(std::uint64_t rows, std::uint64_t blocks) {
  std::vector<Place> places;
  for (std::uint64_t tile_row = 0; tile_row < rows; tile_row += 128) {
    for (std::uint64_t tile_block = 0; tile_block < blocks; tile_block += 4) {
      for (std::uint64_t i = 0; i < 128; ++i) {
        for (std::uint64_t b = 0; b < 4; ++b) places.emplace_back(tile_row + (i % 4) * 32 + i / 4, tile_block + b);
      }
    }
  }
  return places;
}

std::vector<Place> walk_8x4(std::uint64_t rows, std::uint64_t blocks) {
  std::vector<Place> places;
  for (std::uint64_t tile_row = 0; tile_row < rows; tile_row += 8) {
    for (std::uint64_t tile_block = 0; tile_block < blocks; tile_block += 4) {
      for (std::uint64_t i = 0; i < 8; ++i) {
        for (std::uint64_t b = 0; b < 4; ++b) places.emplace_back(tile_row + i, tile_block + b);
      }
    }
  }
  return places;
}

std::vector<Place> walk_linear(std::uint64_t rows, std::uint64_t blocks) {
  std::vector<Place> places;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (std::uint64_t block = 0; block < blocks; ++block) places.emplace_back(row, block);
  }
  return places;
}

TEST(ScaleLayout, PutsEveryFp4ScaleWhereTheTableSays) {
  for (const std::uint64_t rows : {1, 4, 8, 9, 31, 33, 127, 128, 129, 300}) {
    for (const std::uint64_t blocks : {1, 3, 4, 5, 180, 320}) {
      for (const auto& [layout, places] : {std::pair{ScaleLayout::kSwizzled128x4, walk_128x4(rows, blocks)},
                                           std::pair{ScaleLayout::kSwizzled8x4, walk_8x4(rows, blocks)},
                                           std::pair{ScaleLayout::kLinear, walk_linear(rows, blocks)}}) {
        ASSERT_EQ(device::fp4_scale_bytes(layout, rows, blocks), places.size());
        const auto reference_layout = static_cast<reference::ScaleLayout>(layout);
        ASSERT_EQ(reference::fp4_scale_bytes(reference_layout, rows, blocks), places.size());
        for (std::uint64_t offset = 0; offset < places.size(); ++offset) {
          const auto [row, block] = places[offset];
          ASSERT_EQ(device::fp4_scale_offset(layout, row, block, blocks), offset)
              << "row " << row << " block " << block;
          ASSERT_EQ(reference::fp4_scale_offset(reference_layout, row, block, blocks), offset);
        }
      }
    }
  }
}

TEST(ScaleLayout, KnowsTheCornersOfATileByHand) {
  // H = 5120: 320 blocks, 80 tiles side by side.
  constexpr auto kLayout = ScaleLayout::kSwizzled128x4;
  EXPECT_EQ(device::fp4_scale_offset(kLayout, 0, 0, 320), 0u);
  EXPECT_EQ(device::fp4_scale_offset(kLayout, 1, 0, 320), 16u);
  EXPECT_EQ(device::fp4_scale_offset(kLayout, 32, 0, 320), 4u);
  EXPECT_EQ(device::fp4_scale_offset(kLayout, 127, 3, 320), 511u);
  EXPECT_EQ(device::fp4_scale_offset(kLayout, 0, 4, 320), 512u);
  EXPECT_EQ(device::fp4_scale_offset(kLayout, 128, 0, 320), 80u * 512u);
}

TEST(ScaleLayout, DoesNotWrapBeyond32Bits) {
  constexpr std::uint64_t kRows = 1u << 20, kBlocks = 65536 / 16;
  EXPECT_EQ(device::fp4_scale_offset(ScaleLayout::kLinear, kRows - 1, kBlocks - 1, kBlocks), (1ull << 32) - 1);
  EXPECT_EQ(device::fp4_scale_offset(ScaleLayout::kSwizzled128x4, kRows, 0, kBlocks), 1ull << 32);
  EXPECT_EQ(device::block_scale_index(5, 511, kRows), 511ull * kRows + 5);
  EXPECT_EQ(device::packed_scale_offset(5, 2047, kRows), (511ull * kRows + 5) * 4 + 3);
}

TEST(ScaleLayout, PacksFourGroupScalesToAColumnMajorWord) {
  for (const std::uint64_t rows : {1, 3, 5, 129}) {
    const std::uint64_t stride = device::round_up_to(rows, 4);
    for (const std::uint64_t groups : {1, 4, 6, 40}) {
      // Walk the words: column after column, each `stride` long; a word is four neighbouring groups of one row.
      std::uint64_t offset = 0;
      for (std::uint64_t column = 0; column * 4 < groups; ++column) {
        for (std::uint64_t row = 0; row < stride; ++row) {
          for (std::uint64_t byte = 0; byte < 4; ++byte, ++offset) {
            if (row >= rows) continue;
            ASSERT_EQ(device::packed_scale_offset(row, column * 4 + byte, stride), offset);
          }
        }
      }
      EXPECT_EQ(device::column_major_elements(rows, (groups + 3) / 4, stride), offset / 4 - (stride - rows));
    }
  }
}

TEST(ScaleLayout, StoresBlockScalesColumnByColumn) {
  EXPECT_EQ(device::block_scale_index(0, 0, 8), 0u);
  EXPECT_EQ(device::block_scale_index(4, 0, 8), 4u);
  EXPECT_EQ(device::block_scale_index(0, 1, 8), 8u);
  EXPECT_EQ(device::block_scale_index(4, 2, 8), 20u);
  EXPECT_EQ(device::column_major_elements(5, 3, 8), 21u);
  EXPECT_EQ(device::column_major_elements(0, 3, 8), 0u);
}

}  // namespace
}  // namespace commfuse
