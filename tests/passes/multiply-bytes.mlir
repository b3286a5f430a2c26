!x = tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
!q = tensor<?x64xi8, #dhlo.shape<["n", "64"]>>
!u = tensor<?x64xui8, #dhlo.shape<["n", "64"]>>
!r = tensor<?xf32, #dhlo.shape<["n"]>>
!z = tensor<?x1xi8, #dhlo.shape<["n", "1"]>>
!y = tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
module {
  // Bytes with scales and zero points of rows, unsigned ones with numbers for both, bytes alone. The other products' rows stay: scales
  // are those of columns, bytes are multiplied as bytes, and weights are read otherwise, too.
  func.func @main(%q: !q, %u: !u, %s: !r, %z: !z, %c: tensor<64xf32>) -> (!y, !y, !y, !y, !y, !y, tensor<64x8xf32>) {
    %w = "dhlo.weight"() {name_ = "codes"} : () -> tensor<8x64xi8>
    %ws = "dhlo.weight"() {name_ = "scales"} : () -> tensor<8x2xf32>
    %d = "dhlo.dequantize"(%w, %ws) {code = "i8", dtype = "f32"} : (tensor<8x64xi8>, tensor<8x2xf32>) -> tensor<8x64xf32>
    %t = "dhlo.transpose"(%d) {perm = [1, 0]} : (tensor<8x64xf32>) -> tensor<64x8xf32>
    %qf = "dhlo.convert"(%q) : (!q) -> !x
    %zf = "dhlo.convert"(%z) : (!z) -> tensor<?x1xf32, #dhlo.shape<["n", "1"]>>
    %zb = "dhlo.broadcast"(%zf) {dims = [0, 1]} : (tensor<?x1xf32, #dhlo.shape<["n", "1"]>>) -> !x
    %sb = "dhlo.broadcast"(%s) {dims = [0]} : (!r) -> !x
    %a0 = "dhlo.sub"(%qf, %zb) : (!x, !x) -> !x
    %a1 = "dhlo.mul"(%sb, %a0) : (!x, !x) -> !x
    %a = "dhlo.matmul"(%a1, %t) : (!x, tensor<64x8xf32>) -> !y
    %uf = "dhlo.convert"(%u) : (!u) -> !x
    %k = "dhlo.full"() {value = "-120.0"} : () -> !x
    %m = "dhlo.full"() {value = "0.25"} : () -> !x
    %b0 = "dhlo.add"(%k, %uf) : (!x, !x) -> !x
    %b1 = "dhlo.mul"(%b0, %m) : (!x, !x) -> !x
    %b = "dhlo.matmul"(%b1, %t) : (!x, tensor<64x8xf32>) -> !y
    %e = "dhlo.matmul"(%qf, %t) : (!x, tensor<64x8xf32>) -> !y
    %cb = "dhlo.broadcast"(%c) {dims = [1]} : (tensor<64xf32>) -> !x
    %f1 = "dhlo.mul"(%qf, %cb) : (!x, !x) -> !x
    %f = "dhlo.matmul"(%f1, %t) : (!x, tensor<64x8xf32>) -> !y
    %two = "dhlo.full"() {value = "2"} : () -> !q
    %g0 = "dhlo.mul"(%q, %two) : (!q, !q) -> !q
    %g1 = "dhlo.convert"(%g0) : (!q) -> !x
    %g = "dhlo.matmul"(%g1, %t) : (!x, tensor<64x8xf32>) -> !y
    %d2 = "dhlo.dequantize"(%w, %ws) {code = "i8", dtype = "f32"} : (tensor<8x64xi8>, tensor<8x2xf32>) -> tensor<8x64xf32>
    %t2 = "dhlo.transpose"(%d2) {perm = [1, 0]} : (tensor<8x64xf32>) -> tensor<64x8xf32>
    %h = "dhlo.matmul"(%qf, %t2) : (!x, tensor<64x8xf32>) -> !y
    return %a, %b, %e, %f, %g, %h, %t2 : !y, !y, !y, !y, !y, !y, tensor<64x8xf32>
  }
}
