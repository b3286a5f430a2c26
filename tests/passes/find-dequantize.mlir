!x = tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
!y = tensor<?x32xf32, #dhlo.shape<["n", "32"]>>
!l = tensor<?x64xf32, #dhlo.shape<["m", "64"]>>
module {
  // Bytes with a scale for each row, nibbles with a scale and a zero point for each group of 16, floats of 8 bits with a scale, codes
  // whose scale comes after the product, and a table that is looked up.
  func.func @main(%x: !x, %i: tensor<?xi64, #dhlo.shape<["m"]>>) -> (!y, !y, !y, !y, !l) {
    %q = "dhlo.weight"() {name_ = "bytes"} : () -> tensor<32x64xi8>
    %s = "dhlo.weight"() {name_ = "bytes.s"} : () -> tensor<32x1xf32>
    %qf = "dhlo.convert"(%q) : (tensor<32x64xi8>) -> tensor<32x64xf32>
    %sw = "dhlo.broadcast"(%s) {dims = [0, 1]} : (tensor<32x1xf32>) -> tensor<32x64xf32>
    %w = "dhlo.mul"(%qf, %sw) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %wt = "dhlo.transpose"(%w) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %a = "dhlo.matmul"(%x, %wt) : (!x, tensor<64x32xf32>) -> !y

    %p = "dhlo.weight"() {name_ = "nibbles"} : () -> tensor<32x32xui8>
    %c15 = "dhlo.full"() {value = "15"} : () -> tensor<32x32xui8>
    %c4 = "dhlo.full"() {value = "4"} : () -> tensor<32x32xui8>
    %lo = "dhlo.and"(%p, %c15) : (tensor<32x32xui8>, tensor<32x32xui8>) -> tensor<32x32xui8>
    %hi = "dhlo.shr"(%p, %c4) : (tensor<32x32xui8>, tensor<32x32xui8>) -> tensor<32x32xui8>
    %lo1 = "dhlo.reshape"(%lo) : (tensor<32x32xui8>) -> tensor<32x32x1xui8>
    %hi1 = "dhlo.reshape"(%hi) : (tensor<32x32xui8>) -> tensor<32x32x1xui8>
    %both = "dhlo.concat"(%lo1, %hi1) {dim = 2, operandSegmentSizes = array<i32: 1, 0, 1>} : (tensor<32x32x1xui8>, tensor<32x32x1xui8>) -> tensor<32x32x2xui8>
    %u = "dhlo.reshape"(%both) : (tensor<32x32x2xui8>) -> tensor<32x4x16xui8>
    %ui = "dhlo.convert"(%u) : (tensor<32x4x16xui8>) -> tensor<32x4x16xi32>
    %z = "dhlo.weight"() {name_ = "nibbles.z"} : () -> tensor<32x4x1xi32>
    %zw = "dhlo.broadcast"(%z) {dims = [0, 1, 2]} : (tensor<32x4x1xi32>) -> tensor<32x4x16xi32>
    %uz = "dhlo.sub"(%ui, %zw) : (tensor<32x4x16xi32>, tensor<32x4x16xi32>) -> tensor<32x4x16xi32>
    %uf = "dhlo.convert"(%uz) : (tensor<32x4x16xi32>) -> tensor<32x4x16xf32>
    %g = "dhlo.weight"() {name_ = "nibbles.s"} : () -> tensor<32x4x1xf32>
    %gw = "dhlo.broadcast"(%g) {dims = [0, 1, 2]} : (tensor<32x4x1xf32>) -> tensor<32x4x16xf32>
    %us = "dhlo.mul"(%uf, %gw) : (tensor<32x4x16xf32>, tensor<32x4x16xf32>) -> tensor<32x4x16xf32>
    %v = "dhlo.reshape"(%us) : (tensor<32x4x16xf32>) -> tensor<32x64xf32>
    %vt = "dhlo.transpose"(%v) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %b = "dhlo.matmul"(%x, %vt) : (!x, tensor<64x32xf32>) -> !y

    %e = "dhlo.weight"() {name_ = "floats"} : () -> tensor<32x64xf8E4M3FN>
    %ef = "dhlo.convert"(%e) : (tensor<32x64xf8E4M3FN>) -> tensor<32x64xf32>
    %es = "dhlo.mul"(%ef, %sw) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
    %et = "dhlo.transpose"(%es) {perm = [1, 0]} : (tensor<32x64xf32>) -> tensor<64x32xf32>
    %c = "dhlo.matmul"(%x, %et) : (!x, tensor<64x32xf32>) -> !y

    %qt = "dhlo.transpose"(%q) {perm = [1, 0]} : (tensor<32x64xi8>) -> tensor<64x32xi8>
    %qtf = "dhlo.convert"(%qt) : (tensor<64x32xi8>) -> tensor<64x32xf32>
    %d0 = "dhlo.matmul"(%x, %qtf) : (!x, tensor<64x32xf32>) -> !y
    %s1 = "dhlo.reshape"(%s) : (tensor<32x1xf32>) -> tensor<32xf32>
    %sy = "dhlo.broadcast"(%s1) {dims = [1]} : (tensor<32xf32>) -> !y
    %d = "dhlo.mul"(%d0, %sy) : (!y, !y) -> !y

    %l = "dhlo.take"(%w, %i) {dims = [0], at = 0 : i64, wrap = false} : (tensor<32x64xf32>, tensor<?xi64, #dhlo.shape<["m"]>>) -> !l
    return %a, %b, %c, %d, %l : !y, !y, !y, !y, !l
  }
}
