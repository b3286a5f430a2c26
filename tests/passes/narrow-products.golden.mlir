module {
  func.func @main(%arg0: tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>, %arg1: tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>) -> (tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>, tensor<?x?x5xf32, #dhlo.shape<["b", "m", "5"]>>, tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>) {
    %0 = "dhlo.convert"(%arg0) : (tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>) -> tensor<?x?x8xf16, #dhlo.shape<["b", "m", "8"]>>
    %1 = "dhlo.convert"(%arg1) : (tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>) -> tensor<?x8x?xf16, #dhlo.shape<["b", "8", "n"]>>
    %2 = "dhlo.convert"(%0) : (tensor<?x?x8xf16, #dhlo.shape<["b", "m", "8"]>>) -> tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>
    %3 = "dhlo.convert"(%1) : (tensor<?x8x?xf16, #dhlo.shape<["b", "8", "n"]>>) -> tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>
    %4 = "dhlo.matmul"(%0, %1) : (tensor<?x?x8xf16, #dhlo.shape<["b", "m", "8"]>>, tensor<?x8x?xf16, #dhlo.shape<["b", "8", "n"]>>) -> tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>
    %5 = "dhlo.weight"() {name_ = "w"} : () -> tensor<8x5xf16>
    %6 = "dhlo.matmul"(%0, %5) : (tensor<?x?x8xf16, #dhlo.shape<["b", "m", "8"]>>, tensor<8x5xf16>) -> tensor<?x?x5xf32, #dhlo.shape<["b", "m", "5"]>>
    %7 = "dhlo.add"(%3, %3) : (tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>, tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>) -> tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>
    %8 = "dhlo.matmul"(%2, %7) : (tensor<?x?x8xf32, #dhlo.shape<["b", "m", "8"]>>, tensor<?x8x?xf32, #dhlo.shape<["b", "8", "n"]>>) -> tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>
    return %4, %6, %8 : tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>, tensor<?x?x5xf32, #dhlo.shape<["b", "m", "5"]>>, tensor<?x?x?xf32, #dhlo.shape<["b", "m", "n"]>>
  }
}
