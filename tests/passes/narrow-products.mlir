!h = tensor<?x?x8xf16, #dhlo.shape<["b", "m", "8"]>>
!r = tensor<?x8x?xf16, #dhlo.shape<["b", "8", "n"]>>
!hf = tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>
!rf = tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>
!y = tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>
!w = tensor<8x5xf16>
!wf = tensor<8x5xf32>
!z = tensor<?x?x5xf32, #dhlo.shape<["b", "m", "5"]>>
module {
  // Both sides of the first product are f16; of the second, too, whose right side is a weight; that of the third is computed in f32.
  func.func @main(%a: !hf, %c: !rf) -> (!y, !z, !y) {
    %x = "dhlo.convert"(%a) : (!hf) -> !h
    %r = "dhlo.convert"(%c) : (!rf) -> !r
    %xf = "dhlo.convert"(%x) : (!h) -> !hf
    %rf = "dhlo.convert"(%r) : (!r) -> !rf
    %y = "dhlo.matmul"(%xf, %rf) : (!hf, !rf) -> !y
    %w = "dhlo.weight"() {name_ = "w"} : () -> !w
    %wf = "dhlo.convert"(%w) : (!w) -> !wf
    %z = "dhlo.matmul"(%xf, %wf) : (!hf, !wf) -> !z
    %s = "dhlo.add"(%rf, %rf) : (!rf, !rf) -> !rf
    %t = "dhlo.matmul"(%xf, %s) : (!hf, !rf) -> !y
    return %y, %z, %t : !y, !z, !y
  }
}
